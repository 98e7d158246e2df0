#include "libfabricshm/collective/route_log.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string_view>

#include "libfabricshm/base/log.hpp"

namespace fabricshm {

namespace {

// A job calls a few dozen kinds of operations; one that calls more than this has had enough lines.
constexpr std::size_t kMaxReported = 1024;
std::atomic<std::uint64_t> g_told[kMaxReported];

// True for the first caller with this key. Relaxed: the words guard nothing but themselves.
bool is_first(std::uint64_t key) noexcept {
    key |= 1;  // 0 is an empty place
    for (std::size_t i = 0; i < kMaxReported; ++i) {
        auto& place = g_told[(key + i) % kMaxReported];
        std::uint64_t found = place.load(std::memory_order_relaxed);
        if (found == 0 && place.compare_exchange_strong(found, key, std::memory_order_relaxed)) {
            return true;
        }
        if (found == key) return false;
    }
    return false;
}

}  // namespace

void log_route(const Operation& operation, const char* way) noexcept {
    if (__builtin_expect(log_level() != LogLevel::kDebug, true)) return;
    const GroupState& group = operation.group;
    const auto here = reinterpret_cast<std::uintptr_t>(&group);
    if (!is_first(operation.signature ^ (here << 16) ^ std::hash<std::string_view>{}(way))) return;
    const Bytes bytes = std::max(input_bytes(operation.call, operation.rank(), operation.world()),
                                 output_bytes(operation.call, operation.rank(), operation.world()));
    log(LogLevel::kDebug, "rank %d of %d: %s of %llu bytes (largest part %llu) goes by %s, %s",
        operation.rank(), operation.world(), row_of(operation.call.kind).name,
        static_cast<unsigned long long>(bytes),
        static_cast<unsigned long long>(operation.largest_part), way,
        operation.call.algorithm == Algorithm::kAuto ? "by size and place" : "as the call asks");
}

}  // namespace fabricshm

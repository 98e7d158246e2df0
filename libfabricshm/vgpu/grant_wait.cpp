#include "libfabricshm/vgpu/grant_wait.hpp"

#include <algorithm>

namespace fabricshm::cuda {

namespace {

constexpr int kRests = 15;
constexpr auto kRelaxed = std::memory_order_relaxed;  // see the header

std::int64_t ns_of(TimePoint time) noexcept {
    return time.time_since_epoch().count();
}

}  // namespace

std::optional<Duration> grant_wait_from(const char* text) {
    if (text == nullptr) return std::nullopt;
    const auto length = parse_duration(text);
    if (!length.ok() || *length < Duration::zero()) return std::nullopt;
    return std::min<Duration>(*length, kMaxGrantWait);
}

Duration GrantWait::configured(const Limits& limits) const noexcept {
    if (asked_) return *asked_;
    // The page is the daemon's, which keeps to the bound; one of another version may not.
    constexpr auto kMaxMs =
        std::chrono::duration_cast<std::chrono::milliseconds>(kMaxGrantWait).count();
    return std::chrono::milliseconds(std::min(limits.wait_ms, static_cast<std::uint64_t>(kMaxMs)));
}

Duration GrantWait::length(TimePoint now, const Limits& limits) const noexcept {
    const bool rests = ns_of(now) < rests_until_ns_.load(kRelaxed) &&
                       limits.serial == rests_at_serial_.load(kRelaxed);
    return rests ? Duration::zero() : configured(limits);
}

void GrantWait::was_in_vain(TimePoint now, Duration length, const Limits& limits) noexcept {
    rests_until_ns_.store(ns_of(now + kRests * length), kRelaxed);
    rests_at_serial_.store(limits.serial, kRelaxed);
}

std::uint64_t GrantWait::most_bytes(const Limits& limits) const noexcept {
    const std::uint64_t granted = limits.grant_bytes();
    if (configured(limits) == Duration::zero()) return granted;
    return std::max(granted, limits.most_bytes);
}

}  // namespace fabricshm::cuda

#include "libfabricshm/vgpu/vgpu.hpp"

#include <array>
#include <cstdarg>
#include <cstdio>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/vgpu_messages.hpp"
#include "libfabricshm/vgpu/pools.hpp"

namespace fabricshm::cuda {

namespace {

constexpr auto kAttachWithin = std::chrono::seconds(5);
constexpr auto kLookForDeadEvery = std::chrono::milliseconds(20);
constexpr std::uint64_t kBlock = 2 * kMiB;
constexpr std::uint64_t kGrain = 512;

struct Answer {
    std::string gpu;
    Fd limits;
    Fd ledger;
};

Result<Answer> ask(const ProcessIdentity& self, const std::string& name, const std::string& path) {
    const TimePoint until = Clock::now() + kAttachWithin;
    FABRIC_TRY(const auto request, proto::make_vgpu_request(self, name));
    FABRIC_TRY(UnixSocket socket, UnixSocket::connect(path, until));
    FABRIC_TRY_VOID(socket.send(std::as_bytes(std::span(&request, 1)), {}, until));
    proto::VgpuReply reply{};
    std::array<Fd, 2> descriptors;
    FABRIC_TRY(const Received got,
               socket.receive(std::as_writable_bytes(std::span(&reply, 1)), descriptors, until));
    FABRIC_TRY_VOID(proto::check_vgpu_reply(reply, got.bytes));
    if (got.descriptors != 2) return Error{Errc::kCorrupt, 0, "ask for a vGPU"};
    return Answer{reply.gpu, std::move(descriptors[0]), std::move(descriptors[1])};
}

}  // namespace

Vgpu::Vgpu(std::string name, std::string gpu, Mapping limits, Mapping ledger,
           const ProcessIdentity& self) noexcept
    : name_(std::move(name)),
      gpu_(std::move(gpu)),
      limits_map_(std::move(limits)),
      ledger_map_(std::move(ledger)),
      ledger_(*reinterpret_cast<LedgerFile*>(ledger_map_.data()), self) {}

const LimitsPage& Vgpu::page() const noexcept {
    return *reinterpret_cast<const LimitsPage*>(limits_map_.data());
}

Result<std::unique_ptr<Vgpu>> Vgpu::attach(const std::string& name, const std::string& socket) {
    FABRIC_TRY(const ProcessIdentity self, own_identity());
    FABRIC_TRY(Answer answer, ask(self, name, socket));
    MapOptions read_only;
    read_only.writable = false;
    FABRIC_TRY(Mapping limits, Mapping::map(answer.limits, 0, kLimitsPageBytes, read_only));
    FABRIC_TRY(Mapping ledger, Mapping::map(answer.ledger, 0, kLedgerBytes, {}));
    std::unique_ptr<Vgpu> vgpu(
        new Vgpu(name, answer.gpu, std::move(limits), std::move(ledger), self));
    if (!is_limits_page(vgpu->page()) || !UsageLedger::is_ledger(vgpu->ledger_.file())) {
        return Error{Errc::kCorrupt, 0, "map a vGPU's pages"};
    }
    FABRIC_TRY(vgpu->slot_, vgpu->ledger_.claim());
    vgpu->follow_limits();
    return vgpu;
}

bool Vgpu::may_look_for_dead() noexcept {
    const std::int64_t now = Clock::now().time_since_epoch().count();
    std::int64_t next = next_look_ns_.load(std::memory_order_relaxed);
    const std::int64_t later = now + std::chrono::nanoseconds(kLookForDeadEvery).count();
    // Relaxed: it only keeps a loop of refused calls from reading /proc all the time.
    return now >= next &&
           next_look_ns_.compare_exchange_strong(next, later, std::memory_order_relaxed);
}

bool Vgpu::reserve(std::uint64_t bytes) {
    follow_limits();
    // What takes nothing is granted also while the use is above a quota that shrinks.
    if (bytes == 0) return true;
    if (!charge(bytes)) {
        // Nobody is refused for memory that no one uses.
        const int buried = may_look_for_dead() ? ledger_.reclaim_dead() : 0;
        const bool trimmed = trim_pools(*this);
        if ((buried == 0 && !trimmed) || !charge(bytes)) {
            refused(bytes);
            return false;
        }
    }
    slot().pending.fetch_add(bytes, std::memory_order_relaxed);
    FAULT_POINT("vgpu.reserved");
    return true;
}

bool Vgpu::charge(std::uint64_t bytes) {
    return ledger_.charge(slot_, bytes, page()).ok();
}

void Vgpu::commit(std::uint64_t bytes) noexcept {
    FAULT_POINT("vgpu.allocated");
    slot().pending.fetch_sub(bytes, std::memory_order_relaxed);
}

void Vgpu::roll_back(std::uint64_t bytes) noexcept {
    if (bytes == 0) return;
    slot().pending.fetch_sub(bytes, std::memory_order_relaxed);
    ledger_.release(slot_, bytes);
}

void Vgpu::release(std::uint64_t bytes) noexcept {
    if (bytes == 0) return;
    FAULT_POINT("vgpu.freed");
    ledger_.release(slot_, bytes);
}

std::uint64_t Vgpu::granted() const noexcept {
    const auto limits = read_limits(page());
    return limits ? limits->grant_bytes() : 0;
}

std::uint64_t Vgpu::context_bytes() const noexcept {
    const auto limits = read_limits(page());
    return limits ? limits->context_bytes : 0;
}

void Vgpu::follow_limits() {
    // Acquire: what is read below is at least as new as this serial.
    const std::uint64_t serial = page().serial.load(std::memory_order_acquire);
    if (serial == seen_serial_.load(std::memory_order_relaxed)) return;
    seen_serial_.store(serial, std::memory_order_relaxed);
    const auto limits = read_limits(page());
    if (!limits) return;
    share_percent_.store(limits->share_percent, std::memory_order_relaxed);
    if (used() > limits->grant_bytes()) trim_pools(*this);
}

std::uint64_t device_bytes(std::uint64_t bytes) noexcept {
    const std::uint64_t unit = bytes >= kMiB ? kBlock : kGrain;
    // A size near 2^64 stays as it is: rounding would make it small.
    return bytes > ~std::uint64_t{0} - unit ? bytes : round_up(bytes, unit);
}

void say(const char* format, ...) noexcept {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log(LogLevel::kWarning, "libfabricvgpu: %s", line);
}

}  // namespace fabricshm::cuda

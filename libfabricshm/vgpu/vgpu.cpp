#include "libfabricshm/vgpu/vgpu.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/vgpu_messages.hpp"
#include "libfabricshm/vgpu/captures.hpp"
#include "libfabricshm/vgpu/pools.hpp"

namespace fabricshm::cuda {

namespace {

// A program that finds a daemon which does not answer waits so long, and then runs without limits.
constexpr auto kAttachWithin = std::chrono::seconds(5);
// A process that connects and does not ask within two seconds is cut off.
constexpr int kAttachAttempts = 5;
// The search for the dead reads /proc once for each process: not with every allocation that is
// refused.
constexpr auto kLookForDeadEvery = std::chrono::milliseconds(20);
constexpr auto kPayEvery = std::chrono::milliseconds(20);
constexpr auto kRelaxed = std::memory_order_relaxed;
// How the driver takes memory from the device, as far as is known; where it takes more, NVML shows
// it as overhead.
constexpr std::uint64_t kBlock = 2 * kMiB;
constexpr std::uint64_t kGrain = 512;

struct Answer {
    std::string gpu;
    std::uint32_t host_pid = 0;
    Fd limits;
    Fd ledger;
};

// True for one caller, and then for none until `every` has passed.
bool take_turn(std::atomic<std::int64_t>& next_ns, std::chrono::nanoseconds every) noexcept {
    const std::int64_t now = Clock::now().time_since_epoch().count();
    std::int64_t next = next_ns.load(kRelaxed);
    // Relaxed: it only keeps a loop of calls from asking all the time.
    return now >= next && next_ns.compare_exchange_strong(next, now + every.count(), kRelaxed);
}

// One question on a connection of its own: the daemon knows of our end by a pidfd.
Result<Answer> ask_once(const proto::VgpuRequest& request, const std::string& path) {
    const TimePoint until = Clock::now() + kAttachWithin;
    FABRIC_TRY(UnixSocket socket, UnixSocket::connect(path, until));
    FABRIC_TRY_VOID(socket.send(std::as_bytes(std::span(&request, 1)), {}, until));
    proto::VgpuReply reply{};
    std::array<Fd, 2> descriptors;
    FABRIC_TRY(const Received got,
               socket.receive(std::as_writable_bytes(std::span(&reply, 1)), descriptors, until));
    if (got.lacks_descriptors) return Error{Errc::kSystem, EMFILE, "vgpu: descriptors"};
    FABRIC_TRY_VOID(proto::check_vgpu_reply(reply, got.bytes));
    if (got.descriptors != 2) return Error{Errc::kCorrupt, 0, "ask for a vGPU"};
    return Answer{reply.gpu, reply.host_pid, std::move(descriptors[0]), std::move(descriptors[1])};
}

// A process that lost its processor between connecting and asking was taken for a silent one, and
// would run without limits for it: it asks again.
Result<Answer> ask(const ProcessIdentity& self, const std::string& name, const std::string& path) {
    FABRIC_TRY(const auto request, proto::make_vgpu_request(self, name));
    for (int attempt = 1;; ++attempt) {
        auto answer = ask_once(request, path);
        const bool cut_off = !answer.ok() && answer.error().code == Errc::kClosed;
        if (!cut_off || attempt == kAttachAttempts) return answer;
    }
}

}  // namespace

Vgpu::Vgpu(std::string name, std::string gpu, Mapping limits, Mapping ledger,
           const ProcessIdentity& self) noexcept
    : name_(std::move(name)),
      gpu_(std::move(gpu)),
      limits_map_(std::move(limits)),
      ledger_map_(std::move(ledger)),
      // Plain words that another process made: there is nothing to construct, and attach() checks
      // magic and version before anything else.
      ledger_(*reinterpret_cast<LedgerFile*>(ledger_map_.data()), self),
      grant_wait_(grant_wait_from(std::getenv("FABRIC_VGPU_WAIT"))) {}

const LimitsPage& Vgpu::page() const noexcept {
    return *reinterpret_cast<const LimitsPage*>(limits_map_.data());
}

Result<std::unique_ptr<Vgpu>> Vgpu::attach(const std::string& name, const std::string& socket) {
    FABRIC_TRY(const ProcessIdentity self, own_identity());
    FABRIC_TRY(Answer answer, ask(self, name, socket));
    // Limits are the daemon's word; the ledger is written by all processes of the vGPU.
    MapOptions read_only;
    read_only.writable = false;
    FABRIC_TRY(Mapping limits, Mapping::map(answer.limits, 0, kLimitsPageBytes, read_only));
    FABRIC_TRY(Mapping ledger, Mapping::map(answer.ledger, 0, kLedgerBytes, {}));
    std::unique_ptr<Vgpu> vgpu(
        new Vgpu(name, answer.gpu, std::move(limits), std::move(ledger), self));
    if (!is_limits_page(vgpu->page()) || !UsageLedger::is_ledger(vgpu->ledger_.file())) {
        return Error{Errc::kCorrupt, 0, "map a vGPU's pages"};
    }
    // Nothing can fail after this: a slot that is not kept would be this process's until it ends.
    FABRIC_TRY(vgpu->slot_, vgpu->ledger_.claim(static_cast<pid_t>(answer.host_pid)));
    vgpu->host_pid_ = answer.host_pid != 0 ? answer.host_pid : static_cast<unsigned int>(self.pid);
    vgpu->follow_limits();
    return vgpu;
}

bool Vgpu::may_look_for_dead() noexcept {
    return take_turn(next_look_ns_, kLookForDeadEvery);
}

bool Vgpu::may_pay() noexcept {
    return take_turn(next_pay_ns_, kPayEvery);
}

bool Vgpu::reserve(std::uint64_t bytes) {
    if (reserve_now(bytes) || reserve_waiting(bytes)) return true;
    refused(bytes);
    return false;
}

// What the daemon sees while an allocation waits: the loop takes it for demand, as what was
// refused.
class Vgpu::Wanting {
  public:
    Wanting(Vgpu& vgpu, std::uint64_t bytes, TimePoint until) noexcept
        : vgpu_(vgpu), bytes_(bytes) {
        vgpu_.ledger_.want(vgpu_.slot_, bytes_, until);
    }
    ~Wanting() { vgpu_.ledger_.unwant(vgpu_.slot_, bytes_); }
    Wanting(const Wanting&) = delete;
    Wanting& operator=(const Wanting&) = delete;

  private:
    Vgpu& vgpu_;
    std::uint64_t bytes_;
};

// Not while a stream is captured, neither at the beginning nor later: other threads may not be
// allowed to free then.
bool Vgpu::reserve_waiting(std::uint64_t bytes) {
    const TimePoint begin = Clock::now();
    const auto limits = read_limits(page());
    const Duration length = limits ? grant_wait_.length(begin, *limits) : Duration::zero();
    if (length == Duration::zero() || !can_ever_hold(bytes) || any_capture()) return false;
    const TimePoint until = begin + length;
    const Wanting wanting(*this, bytes, until);
    while (!any_capture()) {
        // Before the try: what makes room after it raises the word.
        const std::uint32_t seen = ledger_.room();
        if (reserve_now(bytes)) return true;
        const TimePoint now = Clock::now();
        if (now >= until) {
            grant_wait_.was_in_vain(now, length, *limits);
            return false;
        }
        // No longer than this, since a process that dies between freeing and waking wakes no
        // waiter, nor does one that captures.
        ledger_.await_room(seen, std::min(until, now + kLookForDeadEvery));
    }
    return false;
}

bool Vgpu::can_ever_hold(std::uint64_t bytes) const noexcept {
    const auto limits = read_limits(page());
    return limits && bytes <= grant_wait_.most_bytes(*limits);
}

bool Vgpu::reserve_now(std::uint64_t bytes) {
    follow_limits();
    // What takes nothing is granted also while the use is above a quota that shrinks.
    if (bytes == 0) return true;
    if (!charge_after_owed(bytes)) {
        // No process is refused for memory that is not in use.
        const int buried = may_look_for_dead() ? ledger_.reclaim_dead() : 0;
        const bool trimmed = trim_pools(*this);
        if ((buried == 0 && !trimmed) || !charge_after_owed(bytes)) return false;
    }
    // Relaxed, here and below: a count from which nothing is concluded about other words.
    slot().pending.fetch_add(bytes, std::memory_order_relaxed);
    FAULT_POINT("vgpu.reserved");
    return true;
}

bool Vgpu::charge(std::uint64_t bytes) {
    if (!ledger_.charge(slot_, bytes, page()).ok()) return false;
    // Release, against known(): a reader that finds it here finds it charged.
    ever_.fetch_add(bytes, std::memory_order_release);
    return true;
}

// The room that others leave is first of all for what the GPU holds already.
bool Vgpu::charge_after_owed(std::uint64_t bytes) {
    return (owed_.load(kRelaxed) == 0 || owe(0)) && charge(bytes);
}

bool Vgpu::owe(std::uint64_t bytes) {
    // Relaxed: `owed_` is written with its lock held; readers without it only check for not 0.
    const std::lock_guard lock(owed_mutex_);
    const std::uint64_t owed = owed_.load(kRelaxed) + bytes;
    const auto charged = ledger_.charge_up_to(slot_, owed, page());
    const std::uint64_t left = owed - (charged.ok() ? *charged : 0);
    owed_.store(left, kRelaxed);
    return left == 0;
}

// Of what is freed so much stays charged as is owed; returns the rest.
std::uint64_t Vgpu::pay_with(std::uint64_t freed) {
    // The bytes are in the slot already and stay there: only what they stand for changes.
    const std::lock_guard lock(owed_mutex_);
    const std::uint64_t paid = std::min(freed, owed_.load(kRelaxed));
    owed_.fetch_sub(paid, kRelaxed);
    return freed - paid;
}

Vgpu::Known Vgpu::known() const {
    Known found;
    // Acquire, and before the bytes: what of `ever` is seen is seen in them as well.
    found.ever = ever_.load(std::memory_order_acquire);
    const std::lock_guard lock(owed_mutex_);
    found.bytes = slot().charged.load(kRelaxed) + owed_.load(kRelaxed);
    return found;
}

// The bytes are charged since reserve(); nothing is left but the note that a call was under way,
// for readers of the ledger of a process that died or hangs.
void Vgpu::commit(std::uint64_t bytes) noexcept {
    FAULT_POINT("vgpu.allocated");
    slot().pending.fetch_sub(bytes, std::memory_order_relaxed);
}

// The driver refused what the quota allowed.
void Vgpu::roll_back(std::uint64_t bytes) noexcept {
    if (bytes == 0) return;
    slot().pending.fetch_sub(bytes, std::memory_order_relaxed);
    ledger_.release(slot_, bytes);
}

void Vgpu::release(std::uint64_t bytes) noexcept {
    if (bytes == 0) return;
    FAULT_POINT("vgpu.freed");
    // Relaxed: a debt made at this moment by another thread is paid with the next that is freed.
    if (owed_.load(kRelaxed) != 0) bytes = pay_with(bytes);
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
    std::optional<Limits> limits;
    {
        // One at a time: a thread that read the limits and then lost its processor must not put
        // their share back over that of later ones, which would not be read again.
        const std::lock_guard lock(limits_mutex_);
        limits = read_limits(page());
        // Being changed at this moment: the next call sees it.
        if (!limits) return;
        // Relaxed: each word stands for itself.
        seen_serial_.store(limits->serial, std::memory_order_relaxed);
        share_percent_.store(limits->share_percent, std::memory_order_relaxed);
    }
    // A quota that shrinks waits for us: what only a pool keeps goes back now. Without the lock:
    // the driver's part of it is slow. Two threads that see the same change both trim, which is as
    // good as once.
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

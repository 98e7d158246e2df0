#include "libfabricshm/shm/link_meter.hpp"

#include <algorithm>
#include <cstdlib>

#include "libfabricshm/base/log.hpp"

namespace fabricshm {

namespace {

// Nothing that this process charges can take longer; what a scribbled page says beyond it is
// ignored.
constexpr std::uint64_t kMaxAhead = 10'000'000'000;

// However many ranks share a link, something still gets through.
constexpr double kKneeFloor = 0.1;

// A wait that ended late makes the next operation start early by as much, if that follows at once:
// the emulator's own lateness is no property of the machine. Not more than this.
constexpr std::uint64_t kMaxBehind = 200'000;
constexpr std::uint64_t kAtOnce = 20'000;

// A time in the page that no rank could have written is taken for `now`.
std::uint64_t sane(std::uint64_t until, std::uint64_t now) noexcept {
    return until > now + kMaxAhead ? now : until;
}

// Charges `length` from `from` on; until when the channel is taken then. Relaxed throughout: the
// word is a sum of durations, and no data is read on the strength of it. Compare and exchange makes
// every addition count, which is all that sharing needs. A rank that dies in between leaves its
// time charged, which passes.
std::uint64_t take(std::atomic<std::uint64_t>& until, std::uint64_t from,
                   std::uint64_t length) noexcept {
    std::uint64_t taken = until.load(std::memory_order_relaxed);
    std::uint64_t end = 0;
    do {
        end = std::max(sane(taken, from), from) + length;
    } while (!until.compare_exchange_weak(taken, end, std::memory_order_relaxed));
    return end;
}

int slot_of(int node, int rank, std::uint32_t salt) noexcept {
    const auto place = (static_cast<std::uint32_t>(rank) + salt) % kNodeSlots;
    return node * kNodeSlots + static_cast<int>(place);
}

}  // namespace

int LinkMeter::node_of(int rank, int world, int nodes) noexcept {
    const char* given = std::getenv("FABRIC_EMULATED_NODE");
    if (given != nullptr && *given != '\0') {
        char* end = nullptr;
        const long node = std::strtol(given, &end, 10);
        if (*end == '\0' && node >= 0 && node < nodes) return static_cast<int>(node);
        log(LogLevel::kWarning, "FABRIC_EMULATED_NODE=%s is not a node of the machine (0 to %d)",
            given, nodes - 1);
    }
    return rank * nodes / std::max(world, 1);
}

LinkMeter::LinkMeter(std::byte* page, const LinkImage& image, int rank, int world, LinkClock& clock,
                     std::byte* pool, std::uint32_t salt) noexcept
    : page_(*reinterpret_cast<LinkPage*>(page)),
      pool_(reinterpret_cast<LinkPage*>(pool)),
      image_(image),
      node_(node_of(rank, world, static_cast<int>(image.node_count))),
      slot_(slot_of(node_, rank, salt)),
      route_(image_.routes[node_]),
      clock_(clock),
      cost_(clock.cost()),
      // Each rank has a sequence of its own, and the same one in every run.
      random_(std::uint64_t{image.seed} << 32 | static_cast<std::uint32_t>(slot_) << 16 |
              static_cast<std::uint16_t>(world)) {
    begin();
}

void LinkMeter::begin() noexcept {
    const std::uint64_t real = clock_.now();
    if (real > last_ + behind_ + kAtOnce) behind_ = 0;
    last_ = real - behind_ - 2 * cost_;
    ready_ = std::max(ready_, last_);
    due_ = std::max(due_, last_);
    signalled_ = false;
}

// What happens now began before the clock was read, by this reading and one that the caller's own
// work takes; and a wait is over when its last reading is.
std::uint64_t LinkMeter::now() noexcept {
    return clock_.now() - behind_ - 2 * cost_;
}

void LinkMeter::wait(std::uint64_t until) noexcept {
    // What took longer than the machine would need has taken that long: no debt from that.
    const std::uint64_t real = clock_.now();
    const std::uint64_t end = std::max(until, real - behind_);
    std::uint64_t after = real;
    if (end > real + cost_) after = clock_.wait(std::min(end, real + kMaxAhead) - cost_);
    behind_ = std::min(after > end ? after - end : 0, kMaxBehind);
    last_ = after - behind_;
}

void LinkMeter::book(Bytes bytes, bool is_read) noexcept {
    const std::uint64_t now = this->now();
    // A read begins now. A write is over: it began after the last thing that happened here.
    const std::uint64_t from = std::max(is_read ? now : last_, ready_);
    std::uint64_t done = from;
    for (std::uint32_t i = 0; i < route_.hop_count; ++i) {
        const LinkHop hop = route_.hops[i];
        const double share = static_cast<double>(bytes) * hop.permille / 1000.0;
        // The largest: bytes flow through, they are not stored and sent on.
        done = std::max(done, book_on(hop.channel, share, is_read, from));
    }
    const std::uint64_t latency = is_read ? route_.read_latency_ns : route_.write_latency_ns;
    due_ = std::max(due_, done + latency + tail());
    due_ = std::min(due_, now + kMaxAhead);
    be_busy(due_);
    last_ = now;
    wrote_ = wrote_ || !is_read;
    signalled_ = false;
}

std::uint64_t LinkMeter::book_on(int index, double bytes, bool is_read,
                                 std::uint64_t from) noexcept {
    const LinkChannel& channel = image_.channels[index];
    const double per_byte = is_read ? channel.read_ns_per_byte : channel.write_ns_per_byte;
    if (per_byte == 0) return from;
    Rest& rest = rest_[static_cast<std::size_t>(index)];
    double& owed = is_read ? rest.read : rest.write;
    const double exact = bytes * per_byte / knee_factor(channel, from) + owed;
    const auto whole = std::min(static_cast<std::uint64_t>(exact), kMaxAhead);
    owed = exact - static_cast<double>(whole) < 1.0 ? exact - static_cast<double>(whole) : 0.0;

    const bool uses_read = is_read || channel.half_duplex != 0;
    const auto taken_on = [&](LinkPage& page) {
        LinkLive& live = page.live[index];
        return take(uses_read ? live.read_until : live.write_until, from, whole);
    };
    // On both: what this arena has charged is on the pool's page, too, so that its word is the
    // later one, but for ranks that have none of it, or another one, since the daemon was started
    // again.
    const std::uint64_t own = taken_on(page_);
    return pool_ != nullptr ? std::max(own, taken_on(*pool_)) : own;
}

// What an access takes beyond its rated latency: mostly nothing. Evenly spread up to the longest,
// since no data sheet says more than that.
std::uint64_t LinkMeter::tail() noexcept {
    if (route_.tail_permille == 0) return 0;
    // splitmix64: a few instructions, and good enough for which accesses are late.
    random_ += 0x9e3779b97f4a7c15;
    std::uint64_t mixed = (random_ ^ (random_ >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
    if (mixed % 1000 >= route_.tail_permille) return 0;
    return (mixed >> 32) * route_.tail_latency_ns >> 32;
}

void LinkMeter::be_busy(std::uint64_t until) noexcept {
    // Relaxed: others only count how many are busy; nothing is ordered by it.
    page_.slots[slot_].store(until, std::memory_order_relaxed);
    if (pool_ != nullptr) pool_->slots[slot_].store(until, std::memory_order_relaxed);
}

// The part of the bandwidth that is left when more ranks use the channel than its knee allows.
double LinkMeter::knee_factor(const LinkChannel& channel, std::uint64_t now) const noexcept {
    if (channel.knee_ranks == 0 || channel.knee_loss_permille == 0) return 1.0;
    const LinkPage& page = pool_ != nullptr ? *pool_ : page_;
    std::uint32_t active = 1;  // this rank
    for (int node = 0; node < static_cast<int>(image_.node_count); ++node) {
        if ((channel.nodes >> node & 1) == 0) continue;
        for (int slot = node * kNodeSlots; slot < (node + 1) * kNodeSlots; ++slot) {
            const auto until = page.slots[slot].load(std::memory_order_relaxed);
            if (slot != slot_ && sane(until, now) > now) ++active;
        }
    }
    if (active <= channel.knee_ranks) return 1.0;
    const double loss = (active - channel.knee_ranks) * (channel.knee_loss_permille / 1000.0);
    return std::max(1.0 - loss, kKneeFloor);
}

void LinkMeter::look(Bytes bytes) noexcept {
    const std::uint64_t from = std::max(now(), ready_);
    std::uint64_t sent = from;
    for (std::uint32_t i = 0; i < route_.hop_count; ++i) {
        sent =
            std::max(sent, book_on(route_.hops[i].channel, static_cast<double>(bytes), true, from));
    }
    const std::uint64_t latency = route_.read_latency_ns + tail();
    const std::uint64_t there = sent + latency / 2;
    wait(there);
    signalled_ = false;
    ready_ = there + (latency - latency / 2);
    due_ = std::max(due_, ready_);
}

void LinkMeter::signal() noexcept {
    // One store right after the other is under way together with it.
    if (signalled_) return;
    signalled_ = true;
    if (!wrote_) due_ = std::max(due_, std::max(now(), ready_) + route_.write_latency_ns + tail());
    wrote_ = false;
    finish();
}

void LinkMeter::finish() noexcept {
    wait(due_);
    ready_ = std::max(ready_, last_);
}

}  // namespace fabricshm

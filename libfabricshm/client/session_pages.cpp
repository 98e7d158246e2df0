// The session's two pages: asked for when they are first needed, and of every new daemon again. And
// its trace, which the daemon begins.

#include <time.h>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/client/session.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

// The same clock, as it was at the last tick of the kernel: good enough for tenths of a second, and
// a third of the price.
std::int64_t recent_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

void Session::step(const StepInfo& info) {
    want_pages();
    telemetry_.step(info, monotonic_ns());
}

std::shared_ptr<ShardMeter> Session::count_shard(std::uint64_t arena_id, std::uint64_t region_id) {
    want_pages();
    return telemetry_.add_shard(arena_id, region_id);
}

void Session::count_read(ShardMeter& meter, Bytes bytes) noexcept {
    telemetry_.count_read(meter, bytes, recent_ns());
}

void Session::tell_shards() noexcept {
    telemetry_.tell_shards(recent_ns());
}

// In a forked child the lock may be held by a thread that is not there.
int Session::show_wait(int place, const WaitRecord& record) noexcept {
    if (is_foreign()) return -1;
    want_pages();
    return telemetry_.show_wait(place, record);
}

void Session::hide_wait(int place) noexcept {
    if (!is_foreign()) telemetry_.hide_wait(place);
}

DirectiveImage Session::directives() {
    want_pages();
    return telemetry_.directives();
}

QuotaImage Session::quotas() {
    want_pages();
    return telemetry_.quotas();
}

// The first call of the session goes through; later ones are one load.
void Session::want_pages() {
    // Relaxed: the flag guards nothing but itself. A thread that loses the race finds the winner
    // asking.
    if (pages_wanted_.load(std::memory_order_relaxed)) return;
    if (is_foreign() || pages_wanted_.exchange(true, std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    // A daemon that is away is asked when it is back.
    if (state_ != State::kConnected) return;
    ask_for_pages();
    wake_thread();
}

// Puts both questions into the outbox, under the lock. Nothing waits for the answers: they come to
// the session's thread.
void Session::ask_for_pages() {
    const std::pair asked{identity_.id, identity_.daemon_epoch};
    if (!pages_wanted_.load(std::memory_order_relaxed) || pages_asked_ == asked) return;
    pages_asked_ = asked;
    for (const auto type : {proto::Type::kTelemetryOpen, proto::Type::kDirectivesOpen}) {
        outbox_.push_back(proto::make_request(type, ++last_request_));
    }
}

// On the session's thread. False when the reply is about something else. Traces are begun and ended
// by the daemon, unasked.
bool Session::take_page(const proto::Message& reply, fork_guard::Incoming& descriptors) {
    const proto::Type type = proto::type_of(reply.header);
    const bool telemetry = type == proto::Type::kTelemetryOpen;
    const bool traces = type == proto::Type::kTrace && proto::is_news(reply.header);
    if (!telemetry && !traces && type != proto::Type::kDirectivesOpen) return false;
    const Fd descriptor = descriptors.take(0);
    Result<void> taken;
    if (traces) {
        taken = telemetry_.take_trace(reply.trace, descriptor);
    } else if (reply.header.status != 0) {
        taken = proto::error_of(reply, proto::name_of(type));
    } else {
        taken = telemetry ? telemetry_.take_telemetry(descriptor)
                          : telemetry_.take_directives(descriptor);
    }
    // Training goes on without: counters stay here and the last directives in force.
    if (!taken.ok()) log(LogLevel::kWarning, "%s", describe(taken.error()).c_str());
    return true;
}

}  // namespace fabricshm

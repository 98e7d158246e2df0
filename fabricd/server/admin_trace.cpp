#include <cstring>
#include <utility>

#include "fabricd/server/admin_trace.hpp"
#include "libfabricshm/base/tick_clock.hpp"

namespace fabricd {

using namespace admin::v1;

namespace {

// A ring holds 4,096 operations: a rank has to do more than 800,000 per second to overtake this.
constexpr std::chrono::milliseconds kTraceEvery(5);
// How often a client hears that the trace is on, whether or not there is anything in it.
constexpr std::chrono::milliseconds kTraceSign(100);

void pack_traced(const fabricd::TracedSession& session, admin::v1::TracedSession& message) {
    message.set_session_id(session.session_id);
    message.set_pid(session.pid);
    message.set_label(session.label);
    message.set_lost(session.reader.lost());
    message.set_senseless(session.impossible());
}

void pack_records(const std::vector<fabricshm::TraceRecord>& records,
                  admin::v1::TracedSession& message) {
    auto& words = *message.mutable_records();
    words.Resize(static_cast<int>(records.size() * fabricshm::kTraceWords), 0);
    std::memcpy(words.mutable_data(), records.data(), records.size() * sizeof records[0]);
}

}  // namespace

void write_trace(JobTrace& trace, const std::function<bool(const TraceReply& reply)>& write,
                 const std::function<bool(std::chrono::milliseconds)>& pause,
                 std::chrono::milliseconds alive_every) {
    TraceReply reply;
    reply.set_began_ns(trace.span().began_ns);
    reply.set_until_ns(trace.span().until_ns);
    reply.set_unix_ns(trace.span().unix_ns);
    for (const auto& session : trace.sessions()) pack_traced(session, *reply.add_sessions());
    bool is_there = write(reply);
    auto sign_due = fabricshm::Clock::now() + kTraceSign;
    auto alive_due = fabricshm::Clock::now() + alive_every;
    for (bool is_over = false; is_there && !is_over;) {
        const std::int64_t left = trace.span().until_ns - fabricshm::monotonic_clock_ns();
        // Once more after the end, for what the ranks had begun to write by then.
        is_over = left <= 0;
        bool is_gone = false;
        if (fabricshm::Clock::now() >= alive_due) {
            alive_due = fabricshm::Clock::now() + alive_every;
            is_gone = !trace.is_alive();
            is_over = is_over || is_gone;
        }
        if (!pause(kTraceEvery)) {
            // Where it is the client that goes, the write fails.
            reply.Clear();
            reply.set_ended_early("fabricd has ended it");
            (void)write(reply);
            break;
        }
        reply.Clear();
        trace.read([&](const auto& session, const auto& records) {
            auto& message = *reply.add_sessions();
            pack_traced(session, message);
            pack_records(records, message);
        });
        const auto now = fabricshm::Clock::now();
        if (reply.sessions_size() == 0 && now < sign_due && !is_over) continue;
        sign_due = now + kTraceSign;
        // The counts may have changed without a record to go with.
        for (const auto& session : trace.sessions()) {
            if (is_over) pack_traced(session, *reply.add_sessions());
        }
        if (is_gone) reply.set_ended_early("the last process of the job has ended");
        is_there = write(reply);
    }
    trace.warn_of_impossible();
}

StallWatch::StallWatch(std::chrono::milliseconds longest, std::function<void()> cancel)
    : longest_(longest), cancel_(std::move(cancel)), thread_([this] { run(); }) {}

StallWatch::~StallWatch() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

bool StallWatch::watch(const std::function<bool()>& write) {
    {
        const std::lock_guard lock(mutex_);
        is_writing_ = true;
        until_ = fabricshm::Clock::now() + longest_;
    }
    const bool is_written = write();
    const std::lock_guard lock(mutex_);
    is_writing_ = false;
    return is_written;
}

// Not woken for each write, of which there are 200 per second: a look now and then is enough.
void StallWatch::run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        changed_.wait_for(lock, longest_ / 10, [this] { return stopping_; });
        if (!is_writing_ || fabricshm::Clock::now() < until_) continue;
        lock.unlock();
        cancel_();
        return;
    }
}

}  // namespace fabricd

#include "fabricd/server/job_trace_start.hpp"

#include <time.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "fabricd/server/attach_server.hpp"
#include "fabricd/server/daemon.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/page_file.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

std::int64_t wall_clock_ns() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

std::vector<SessionView> sessions_of(Daemon& daemon, const std::string& job) {
    const Snapshot all = daemon.snapshot({.sessions = true, .arenas = true});
    std::vector<SessionView> sessions;
    for (const SessionView& session : all.sessions) {
        if (!session.host.empty() || !session.connected) continue;
        const bool is_its = std::ranges::any_of(all.arenas, [&](const ArenaView& arena) {
            return arena.name == job && std::ranges::count(arena.session_ids, session.id) != 0;
        });
        if (is_its) sessions.push_back(session);
    }
    return sessions;
}

struct TraceFiles {
    std::vector<TracedSession> sessions;
    std::vector<fabricshm::Fd> descriptors;
};

Result<TraceFiles> make_files(const std::vector<SessionView>& sessions) {
    TraceFiles files;
    for (const SessionView& session : sessions) {
        FABRIC_TRY(auto file, fabricshm::make_page_file("fabric-trace", fabricshm::kTraceFileBytes,
                                                        fabricshm::PageAccess::kReadWrite,
                                                        fabricshm::format_trace));
        const fabricshm::TraceReader reader(file.mapping.data());
        files.sessions.push_back(
            {session.id, session.pid, session.label, std::move(file.mapping), reader, {}, 0});
        files.descriptors.push_back(std::move(file.descriptor));
    }
    return files;
}

}  // namespace

JobTraces::JobTraces(Daemon& daemon) noexcept
    : daemon_(daemon), started_(fabricshm::tick_moment()) {}

Result<std::unique_ptr<JobTrace>> JobTraces::begin(const std::string& job,
                                                   fabricshm::Duration length) {
    auto sessions = sessions_of(daemon_, job);
    if (sessions.empty()) return Error{Errc::kNotFound, 0, "trace"};
    if (sessions.size() > kTracedSessions) sessions.resize(kTracedSessions);
    // Relaxed: the flag guards nothing but itself.
    if (is_on_.exchange(true, std::memory_order_relaxed)) {
        return fabricshm::explain({Errc::kBusy, 0, "trace"}, "another trace is being taken");
    }
    std::vector<SessionId> traced;
    for (const SessionView& session : sessions) traced.push_back(SessionId{session.id});
    const auto end = [this, traced] {
        daemon_.on_server("admin_trace", [&](AttachServer& server) {
            for (const SessionId session : traced) server.trace(session, proto::Trace{}, {});
        });
        is_on_.store(false, std::memory_order_relaxed);
    };
    const auto is_alive = [this, traced] {
        const Snapshot now = daemon_.snapshot({.sessions = true});
        return std::ranges::any_of(now.sessions, [&](const SessionView& session) {
            return std::ranges::count(traced, SessionId{session.id}) != 0;
        });
    };
    const auto warn = [this](const std::string& line) {
        daemon_.on_server("admin_trace", [&](AttachServer& server) { server.warn_of_trace(line); });
    };
    auto files = make_files(sessions);
    if (!files.ok()) {
        is_on_.store(false, std::memory_order_relaxed);
        return files.error();
    }
    const auto now = fabricshm::tick_moment();
    const auto rate = fabricshm::rate_between(started_, now, fabricshm::kernel_uses_ticks());
    const TraceSpan span{now.ns, now.ns + length.count(),
                         wall_clock_ns() - (fabricshm::monotonic_clock_ns() - now.ns)};
    const proto::Trace told{fabricshm::kTraceFileBytes, span.until_ns, rate.base_ns,
                            rate.base_ticks, rate.scale};
    daemon_.on_server("admin_trace", [&](AttachServer& server) {
        for (std::size_t i = 0; i < traced.size(); ++i) {
            // One that has just gone has an empty ring.
            server.trace(traced[i], told, std::move(files->descriptors[i]));
        }
    });
    return std::make_unique<JobTrace>(std::move(files->sessions), span, end, is_alive, warn);
}

}  // namespace fabricd

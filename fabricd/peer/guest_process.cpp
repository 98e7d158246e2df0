#include "fabricd/peer/guest_process.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

std::set<OpenRange> ranges_before(GuestProcesses& processes, std::uint64_t session,
                                  const proto::Message& request) {
    const auto found = processes.find(session);
    if (found == processes.end()) return {};
    std::set<OpenRange>& all = found->second.ranges;
    const proto::Type type = proto::type_of(request.header);
    if (type == proto::Type::kBye) return std::exchange(all, {});
    std::set<OpenRange> ranges;
    if (type != proto::Type::kArenaClose) return ranges;
    for (const OpenRange& range : all) {
        if (range.arena == ArenaId{request.arena.arena_id}) ranges.insert(range);
    }
    return ranges;
}

std::uint64_t leaver_of(const GuestProcesses& processes, std::int32_t pid,
                        const proto::Message& request) {
    if (proto::type_of(request.header) != proto::Type::kBye) return 0;
    const auto found = processes.find(request.hello.session_id);
    const bool is_own = found != processes.end() && found->second.pid == pid;
    return is_own && !found->second.has_ended ? found->first : 0;
}

fabricshm::Result<void> KnownSessions::check_all() const {
    if (has_heard && unwatched.empty()) return {};
    return fabricshm::explain({fabricshm::Errc::kBusy, 0, "end sessions"},
                              has_heard ? "the processes of some sessions can't be watched"
                                        : "the pool's owner has not said which sessions there are");
}

std::vector<fabricshm::Fd> kill_all(const GuestProcesses& processes, std::set<OpenRange>& ranges) {
    std::vector<fabricshm::Fd> ending;
    for (const auto& [session, process] : processes) {
        if (!process.has_ended) {
            (void)::syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0);
            ending.emplace_back(::dup(process.pidfd.get()));
        }
        ranges.insert(process.ranges.begin(), process.ranges.end());
    }
    return ending;
}

void keep_ranges(GuestProcesses& processes, std::uint64_t session,
                 const std::set<OpenRange>& ranges) {
    const auto found = processes.find(session);
    if (found != processes.end()) found->second.ranges.insert(ranges.begin(), ranges.end());
}

EventLoop::WatchId forget_left(GuestProcesses& processes, std::uint64_t session,
                               const proto::Message& reply) {
    const auto status = static_cast<fabricshm::Errc>(reply.header.status);
    const auto found = processes.find(session);
    // One whose process has ended meanwhile is being written out, and goes then.
    const bool has_left = found != processes.end() && !found->second.has_ended &&
                          (status == fabricshm::Errc::kOk || status == fabricshm::Errc::kNotFound);
    if (!has_left) return 0;
    const EventLoop::WatchId watch = found->second.watch;
    processes.erase(found);
    return watch;
}

void forget_arena(GuestProcesses& processes, std::uint64_t session, ArenaId arena) {
    const auto found = processes.find(session);
    if (found == processes.end()) return;
    std::erase_if(found->second.ranges,
                  [=](const OpenRange& range) { return range.arena == arena; });
}

fabricshm::Error owner_is_away(const std::string& owner, const std::string& why) {
    return fabricshm::explain({fabricshm::Errc::kDaemon, 0, "attach"},
                              "fabricd of this host is there, but the owner of its pool, %s "
                              "(pool.owner), does not serve it: %s",
                              owner.c_str(), why.c_str());
}

void add_to(Snapshot& all, const GuestProcesses& processes) {
    for (const auto& [session, process] : processes) {
        SessionView view;
        view.id = session;
        view.pid = process.pid;
        view.uid = process.uid;
        view.connected = process.connection != 0;
        all.totals.sessions_connected += view.connected ? 1 : 0;
        all.sessions.push_back(std::move(view));
    }
    all.totals.sessions = all.sessions.size();
}

}  // namespace fabricd

// Of a guest's daemon: the processes of this host that have sessions, with what of the pool's
// device each of them may have written. Plain data; GuestDaemon says which thread uses it.

#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fabricd/pool/books.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/server/event_loop.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// Of a session; outlives its connections, as at any daemon.
struct GuestProcess {
    fabricshm::Fd pidfd;
    EventLoop::WatchId watch = 0;
    std::int32_t pid = 0;
    std::uint32_t uid = 0;
    std::uint64_t connection = 0;
    std::set<OpenRange> ranges;  // that it may have written; where this host flushes
    bool has_ended = false;      // and what it wrote is on its way out of the caches
};

/// By session.
using GuestProcesses = std::map<std::uint64_t, GuestProcess>;

/// Whether those are all that this host has.
struct KnownSessions {
    // The owner has said once which sessions there are: since then each one begins here.
    bool has_heard = false;
    std::set<std::uint64_t> unwatched;  // sessions of the owner's whose processes can't be watched

    /// kBusy: there may be more.
    fabricshm::Result<void> check_all() const;
};

/// Sends SIGKILL to those that have not ended, and gives a descriptor of each to wait for; `ranges`
/// gets what all of them may have written.
std::vector<fabricshm::Fd> kill_all(const GuestProcesses& processes, std::set<OpenRange>& ranges);

/// What has to be out of this host's caches before the owner gets a session's request: after a
/// goodbye, or when an arena is closed, its memory is another's at once. Those of a goodbye are
/// taken away.
std::set<OpenRange> ranges_before(GuestProcesses& processes, std::uint64_t session,
                                  const fabricshm::proto::Message& request);

/// What clients of a guest hear whose owner does not serve it: their own daemon is there.
fabricshm::Error owner_is_away(const std::string& owner, const std::string& why);

/// The session that a goodbye without a hello names, said by process `pid`; 0: none of that
/// process's.
std::uint64_t leaver_of(const GuestProcesses& processes, std::int32_t pid,
                        const fabricshm::proto::Message& request);

/// They could not be written out of the caches.
void keep_ranges(GuestProcesses& processes, std::uint64_t session,
                 const std::set<OpenRange>& ranges);

/// The owner's answer to a goodbye: where it has ended the session, now or before, its process is
/// no longer watched for it. Returns the watch that has to go; 0: none.
EventLoop::WatchId forget_left(GuestProcesses& processes, std::uint64_t session,
                               const fabricshm::proto::Message& reply);

/// The session has closed the arena.
void forget_arena(GuestProcesses& processes, std::uint64_t session, ArenaId arena);

/// For people.
void add_to(Snapshot& all, const GuestProcesses& processes);

}  // namespace fabricd

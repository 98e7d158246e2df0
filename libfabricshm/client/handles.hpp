// What the opaque types of the C ABI are.

#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/arena.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/client/session.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/collective/symmetric.hpp"
#include "libfabricshm/include/fabricshm/fabricshm.h"
#include "libfabricshm/net/hosts_group.hpp"

/// A handle stays where it is, since the caller has its address; what it owns is shared with the
/// operations that use it.
struct fabricshm_parameters;

namespace fabricshm {
struct CudaSeat;
}

struct fabricshm_session {
    std::shared_ptr<fabricshm::Session> session;
    std::string identity;               // see fabricshm_session_identity()
    fabricshm::SessionOptions options;  // with which it was opened

    // Keeps opening and closing of arenas apart, over the round trip of an opening, too: the daemon
    // knows an arena of a session as open or not, so the last close has to be distinguished from
    // the others. Taken before `mutex`, and never by calls that concern groups alone.
    std::mutex opening;
    // Guards the handles, for moments. `arenas` changes under both.
    std::mutex mutex;
    std::set<fabricshm_arena*> arenas;
    std::set<fabricshm_group*> groups;
};

struct fabricshm_arena {
    fabricshm_session* session = nullptr;
    std::shared_ptr<fabricshm::Arena> arena;  // handles of one arena share it
};

/// `arena` is held by the group itself: closing the arena's handle does not unmap it under an
/// operation.
struct fabricshm_group {
    fabricshm_session* session = nullptr;
    std::shared_ptr<fabricshm::Arena> arena;
    std::string name;
    std::unique_ptr<fabricshm::Group> group;            // in one pool; else nullptr
    std::unique_ptr<fabricshm::net::HostsGroup> hosts;  // in several; else nullptr
    std::vector<fabricshm_parameters*> sets;  // that are stepped by it; under the session's mutex
    // Made at the first call. It goes after `group` has waited for what runs: peers use its memory.
    std::unique_ptr<fabricshm::SymmetricReduce> symmetric;
    std::shared_ptr<fabricshm::CudaSeat> on_device;  // its place on a GPU, if it has one

    // The last call, and the number under which the group keeps it: see repeats() of
    // c_collective.cpp. Like the group itself, for one collective at a time.
    fabricshm_call last{};
    std::uint64_t last_number = 0;
    fabricshm::Duration last_timeout{};

    /// What the daemon of this host knows of it.
    fabricshm::Group& local() const noexcept { return hosts ? hosts->local() : *group; }
    int rank() const noexcept { return hosts ? hosts->rank() : group->rank(); }
    int world() const noexcept { return hosts ? hosts->world() : group->world(); }
};

struct fabricshm_request {
    std::shared_ptr<fabricshm::Request> request;
    std::string what;  // for error texts: "allreduce in group 'world'"
    // Of the process that started it: no child of fork() has the threads that complete it.
    std::uint32_t generation = fabricshm::fork_guard::generation();
};

namespace fabricshm {

/// How long a call with this timeout may take: FABRICSHM_TIMEOUT_DEFAULT is the session's.
Duration timeout_of(const Session& session, std::int64_t timeout_ms) noexcept;

/// When a call with this timeout has to end: FABRICSHM_TIMEOUT_DEFAULT is the session's.
TimePoint deadline_of(const Session& session, std::int64_t timeout_ms) noexcept;

/// 0, or the refusal of a timeout below FABRICSHM_TIMEOUT_DEFAULT.
int check_timeout(const char* function, std::int64_t timeout_ms);

/// "arena 'job'", with the session's device if it has one: where memory that was refused would have
/// been. A refusal is by the arena's size or by the device's quota, and the wire does not say
/// which.
std::string place_of(const Arena& arena);

/// Lets go of an arena handle, and of the arena itself when it was the last one. Under both of the
/// session's mutexes.
void drop_arena(fabricshm_session& session, fabricshm_arena* handle) noexcept;

/// The group of the set is about to go: from here on the set can only be closed.
void leave_group(fabricshm_parameters& set) noexcept;

/// The group of this arena, as the daemon gives it; waits until all ranks are there.
Result<std::unique_ptr<Group>> join_group(const std::shared_ptr<Arena>& arena,
                                          const std::string& name, int rank, int world,
                                          TimePoint deadline);
/// The survivors of a group that was retired.
Result<std::unique_ptr<Group>> shrink_group(const std::shared_ptr<Arena>& arena, const Group& group,
                                            TimePoint deadline);
/// fabricshm_group_shrink() of a group of several hosts.
int shrink_hosts(fabricshm_group& group, std::int64_t timeout_ms, fabricshm_group** survivors);
/// Notifies the daemon that a rank has left a group.
void post_leave(Arena& arena, std::uint64_t group_id, int rank) noexcept;
/// Enters a handle into its session, under the session's lock: the session leaves its groups when
/// it is closed.
fabricshm_group* adopt(std::unique_ptr<fabricshm_group> handle);
/// 0, or the refusal of what goes in one pool alone.
int check_one_pool(const char* function, const fabricshm_group& group);

/// Leaves a group: waits for what was started in it, then notifies the daemon.
void drop_group(fabricshm_group* handle) noexcept;

}  // namespace fabricshm

// Owners of the C ABI's handles. A group keeps its arena open, an arena its session, and an array
// its arena: memory that Python can reach is never unmapped.

#pragma once

#include <fabricshm/fabricshm.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>

namespace fabricshm::python {

/// After a fork the handles are the parent's: the child must not close them.
class Owned {
  public:
    bool mine() const { return getpid() == owner_; }

  private:
    pid_t owner_ = getpid();
};

/// Closed when the last object goes that came from it, which may be long after close() in Python.
struct SessionHandle : Owned {
    explicit SessionHandle(fabricshm_session* opened) : session(opened) {}
    ~SessionHandle() {
        if (mine()) fabricshm_session_close(session);
    }
    SessionHandle(const SessionHandle&) = delete;
    SessionHandle& operator=(const SessionHandle&) = delete;

    fabricshm_session* session;
};

/// Holding the session keeps the connection by which the daemon knows that the arena is in use.
struct ArenaHandle : Owned {
    ArenaHandle(std::shared_ptr<SessionHandle> of, fabricshm_arena* opened)
        : session(std::move(of)), arena(opened) {}
    ~ArenaHandle() {
        if (mine()) fabricshm_arena_close(arena);
    }
    ArenaHandle(const ArenaHandle&) = delete;
    ArenaHandle& operator=(const ArenaHandle&) = delete;

    std::shared_ptr<SessionHandle> session;
    fabricshm_arena* arena;
};

struct GroupHandle : Owned {
    GroupHandle(std::shared_ptr<ArenaHandle> of, fabricshm_group* joined)
        : arena(std::move(of)), group(joined) {}
    ~GroupHandle() {
        if (mine()) fabricshm_group_leave(group);
    }
    GroupHandle(const GroupHandle&) = delete;
    GroupHandle& operator=(const GroupHandle&) = delete;

    std::shared_ptr<ArenaHandle> arena;
    fabricshm_group* group;
    std::mutex calling;  // the library takes one collective of a group at a time
};

}  // namespace fabricshm::python

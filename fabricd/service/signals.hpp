// Signals as calls on a thread, instead of handlers in which almost nothing is allowed.

#pragma once

#include <functional>
#include <thread>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// Blocks SIGTERM, SIGINT and SIGHUP in the calling thread (and so in all that it starts later) and
/// calls back for each on a thread of its own until it is destroyed. SIGPIPE is ignored.
class SignalThread {
  public:
    /// From the kernel; a pid of 0: sent from outside of this pid namespace, or by the kernel
    /// itself.
    struct Sender {
        int pid = 0;
        unsigned uid = 0;
    };
    struct Actions {
        std::function<void(int number, Sender sender)> terminate;  // SIGTERM, SIGINT
        std::function<void()> reload;                              // SIGHUP
    };

    /// Call before any other thread is started. Without actions: signals wait until start().
    static fabricshm::Result<SignalThread> block();

    /// The thread of the moved-from object goes along; it looks at descriptors only, see start().
    SignalThread(SignalThread&&) = default;
    ~SignalThread();

    /// Once. The actions run on the thread of this object, one after the other, and may call
    /// anything that is thread-safe; they must not destroy this object.
    void start(Actions actions);

  private:
    SignalThread() = default;

    fabricshm::Fd signals_;
    fabricshm::Fd stop_;  // an eventfd
    std::thread thread_;
};

}  // namespace fabricd

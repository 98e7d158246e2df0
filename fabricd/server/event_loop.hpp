// EventLoop: the control thread's waiting place: descriptors, work posted by other threads, time.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// epoll, level triggered. Everything is for the control thread, but for post() and stop().
class EventLoop {
  public:
    using WatchId = std::uint64_t;
    using Handler = std::function<void(std::uint32_t events)>;

    static fabricshm::Result<EventLoop> make();
    EventLoop(EventLoop&&) noexcept = default;
    EventLoop& operator=(EventLoop&&) noexcept = default;

    /// Calls `handler` whenever `fd` is ready. The caller keeps `fd` open until remove(). Handlers
    /// may add and remove watches, their own included.
    fabricshm::Result<WatchId> add(int fd, std::uint32_t events, Handler handler);

    /// Waits for these events from now on. Unknown ids are ignored.
    void change(WatchId watch, std::uint32_t events) noexcept;

    /// No call of its handler begins after this, also not for an event that was already reported.
    /// Unknown ids are ignored.
    void remove(WatchId watch) noexcept;

    /// Waits for events until `deadline`, serves one batch, then runs what was posted.
    fabricshm::Result<void> turn(fabricshm::TimePoint deadline);

    /// Runs `task` on the control thread, soon. Any thread. False after close(): it will never run.
    bool post(std::function<void()> task);

    /// Runs what has been posted and takes nothing more.
    void close();

    /// Makes stopping() true and ends the current turn(). Async-signal-safe.
    void stop() noexcept;
    bool stopping() const noexcept;

  private:
    // Shared with other threads, so it keeps its address when the loop object moves.
    struct Shared {
        fabricshm::Fd wake;  // an eventfd
        std::atomic<bool> stop{false};
        std::mutex mutex;  // guards the two below
        std::vector<std::function<void()>> posted;
        bool closed = false;
    };
    struct Watch {
        int fd;
        Handler handler;
    };

    EventLoop() = default;
    void run_posted();

    fabricshm::Fd epoll_;
    std::unique_ptr<Shared> shared_;
    // By an id that is never used twice, see add().
    std::unordered_map<WatchId, Watch> watches_;
    WatchId last_ = 0;
};

}  // namespace fabricd

#include "fabricd/server/event_loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

namespace fabricd {

using fabricshm::Fd;
using fabricshm::Result;
using fabricshm::TimePoint;

namespace {

constexpr int kBatch = 64;  // events per turn: small enough that time and posted work get theirs
constexpr EventLoop::WatchId kWakeId = 0;

// Rounded up: waking a millisecond early would spin until the deadline has really come.
int timeout_until(TimePoint deadline) {
    if (deadline == TimePoint::max()) return -1;
    // Compared before they are subtracted: from TimePoint::min(), "at once", that would overflow.
    const TimePoint now = fabricshm::Clock::now();
    if (deadline <= now) return 0;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    // An hour at most, far from the end of an int; a turn without events does no harm.
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3600 * 1000));
}

}  // namespace

Result<EventLoop> EventLoop::make() {
    EventLoop loop;
    loop.epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!loop.epoll_) return fabricshm::error_from_errno(errno, "make event loop");
    loop.shared_ = std::make_unique<Shared>();
    loop.shared_->wake = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!loop.shared_->wake) return fabricshm::error_from_errno(errno, "make event loop");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kWakeId;
    if (::epoll_ctl(loop.epoll_.get(), EPOLL_CTL_ADD, loop.shared_->wake.get(), &event) != 0) {
        return fabricshm::error_from_errno(errno, "make event loop");
    }
    return loop;
}

Result<EventLoop::WatchId> EventLoop::add(int fd, std::uint32_t events, Handler handler) {
    // A number of its own, not the descriptor's: that may be closed and used again within a batch,
    // and a late event of the old one must not reach the new one's handler.
    const WatchId id = ++last_;
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        return fabricshm::error_from_errno(errno, "watch descriptor");
    }
    watches_.emplace(id, Watch{fd, std::move(handler)});
    return id;
}

void EventLoop::change(WatchId watch, std::uint32_t events) noexcept {
    const auto found = watches_.find(watch);
    if (found == watches_.end()) return;
    epoll_event event{};
    event.events = events;
    event.data.u64 = watch;
    // It needs no memory, and the descriptor is there: nothing to fail.
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->second.fd, &event);
}

void EventLoop::remove(WatchId watch) noexcept {
    const auto found = watches_.find(watch);
    if (found == watches_.end()) return;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr);
    watches_.erase(found);
}

Result<void> EventLoop::turn(TimePoint deadline) {
    epoll_event events[kBatch];
    // A signal that interrupts the wait is a turn without events: the caller looks at stopping()
    // after each one.
    const int ready = ::epoll_wait(epoll_.get(), events, kBatch, timeout_until(deadline));
    if (ready < 0 && errno != EINTR) return fabricshm::error_from_errno(errno, "wait for events");
    for (int i = 0; i < ready; ++i) {
        if (events[i].data.u64 == kWakeId) {
            // Read only to make it quiet again: how often it was written says nothing, one look at
            // `posted` takes all of it.
            std::uint64_t count = 0;
            [[maybe_unused]] const auto got = ::read(shared_->wake.get(), &count, sizeof count);
            continue;
        }
        const auto found = watches_.find(events[i].data.u64);
        if (found == watches_.end()) continue;  // removed by a handler earlier in this batch
        // A copy: the handler may remove its own watch while it runs.
        const Handler handler = found->second.handler;
        handler(events[i].events);
    }
    run_posted();
    return {};
}

bool EventLoop::post(std::function<void()> task) {
    {
        const std::lock_guard lock(shared_->mutex);
        if (shared_->closed) return false;
        shared_->posted.push_back(std::move(task));
    }
    const std::uint64_t one = 1;
    // It can only fail when the counter is full, and then the loop is awake anyway.
    return ::write(shared_->wake.get(), &one, sizeof one) == sizeof one || errno == EAGAIN;
}

void EventLoop::run_posted() {
    // Swapped out, so that no lock is held while they run: a task may post another, which then
    // waits for the next turn.
    std::vector<std::function<void()>> tasks;
    {
        const std::lock_guard lock(shared_->mutex);
        tasks.swap(shared_->posted);
    }
    for (const auto& task : tasks) task();
}

void EventLoop::close() {
    {
        const std::lock_guard lock(shared_->mutex);
        // From here on post() says no. What was posted before still runs below: a thread may be
        // waiting for its end.
        shared_->closed = true;
    }
    run_posted();
}

void EventLoop::stop() noexcept {
    // Relaxed: the flag carries nothing else, and the eventfd brings the loop round to look at it.
    shared_->stop.store(true, std::memory_order_relaxed);
    const std::uint64_t one = 1;
    const int saved = errno;  // a signal handler has to leave it alone
    [[maybe_unused]] const auto put = ::write(shared_->wake.get(), &one, sizeof one);
    errno = saved;
}

bool EventLoop::stopping() const noexcept {
    return shared_->stop.load(std::memory_order_relaxed);
}

}  // namespace fabricd

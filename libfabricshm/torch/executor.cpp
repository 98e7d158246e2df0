#include "libfabricshm/torch/executor.hpp"

#include <pthread.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "libfabricshm/torch/work.hpp"

namespace fabricshm::torch_backend {
namespace {

itimerspec after(std::chrono::nanoseconds delay) {
    // A zero would disarm the timer.
    const std::int64_t ns = std::max<std::int64_t>(delay.count(), 1);
    itimerspec spec{};
    spec.it_value.tv_sec = ns / 1'000'000'000;
    spec.it_value.tv_nsec = ns % 1'000'000'000;
    return spec;
}

}  // namespace

Executor::Executor()
    : timer_fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)), owner_pid_(getpid()) {
    TORCH_CHECK(timer_fd_ >= 0, "fabricshm: timerfd_create failed, errno ", errno);
    worker_ = std::thread([this] { work_loop(); });
    // For people who look at a process with top -H.
    pthread_setname_np(worker_.native_handle(), "fabricshm-work");
}

Executor::~Executor() {
    shut_down();
    close(timer_fd_);
}

void Executor::shut_down() {
    if (getpid() != owner_pid_) {
        if (worker_.joinable()) worker_.detach();  // it runs in the parent only
        return;
    }
    {
        Lock lock(mutex_);
        stopping_ = true;
        // Wakes the worker, which looks at stopping_ after each wake.
        arm(std::chrono::nanoseconds(0));
    }
    if (!worker_.joinable()) return;
    // The last owner may be an operation that the worker itself has just dropped.
    if (worker_.get_id() == std::this_thread::get_id()) {
        worker_.detach();
    } else {
        worker_.join();
    }
}

void Executor::submit(WorkPtr work, std::chrono::nanoseconds patience) {
    Lock lock(mutex_);
    // Nobody would run it any more, and its waiter would wait for ever.
    TORCH_CHECK(!stopping_, "fabricshm: the process group has been destroyed");
    const bool first = queue_.empty() && !running_;
    queue_.push_back(std::move(work));
    // Behind another operation nobody is going to be quick about waiting.
    arm(first ? patience : std::chrono::nanoseconds(0));
}

void Executor::hurry() {
    Lock lock(mutex_);
    // Nothing to hurry when somebody is running the queue: whoever it is goes on with the next.
    if (!queue_.empty() && !running_) arm(std::chrono::nanoseconds(0));
}

// A timer that fires too early costs one idle wake-up, so it is never put off, only advanced.
void Executor::arm(std::chrono::nanoseconds delay) {
    const Clock::time_point wanted = Clock::now() + delay;
    if (armed_ && fires_at_ <= wanted) return;
    const itimerspec spec = after(delay);
    timerfd_settime(timer_fd_, 0, &spec, nullptr);
    armed_ = true;
    fires_at_ = wanted;
}

void Executor::run_oldest(Lock& lock) {
    // Taken before it is run: a waiter that comes now finds it running and waits.
    WorkPtr work = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    // Never throws: what goes wrong is kept in the work, for whoever waits for it.
    work->run();
    work.reset();  // may free tensors, which may take the interpreter's lock: not under ours
    lock.lock();
    running_ = false;
    changed_.notify_all();
}

void Executor::finish(const CollectiveWork& work) {
    Lock lock(mutex_);
    while (!work.done()) {
        // One at a time and in order, whoever runs it: all ranks have to call collectives in the
        // same order, and only the order of the calls is the same everywhere.
        if (!running_ && !queue_.empty()) {
            run_oldest(lock);
        } else {
            changed_.wait(lock);
        }
    }
    // The rest is the worker's: its wake-up may have come while this thread was running.
    if (!queue_.empty() && !running_) arm(std::chrono::nanoseconds(0));
}

bool Executor::wait_for(const CollectiveWork& work, std::chrono::milliseconds limit) {
    // Its caller gives up after `limit` and must not be caught in an operation: the worker runs it.
    Lock lock(mutex_);
    if (!queue_.empty() && !running_) arm(std::chrono::nanoseconds(0));
    return changed_.wait_for(lock, limit, [&work] { return work.done(); });
}

// False at the end.
bool Executor::run_what_is_queued(Lock& lock) {
    armed_ = false;
    while (!queue_.empty() && !running_) run_oldest(lock);
    // The end: an operation that another thread is running is waited for, and what is left is
    // run here.
    if (!stopping_) return true;
    changed_.wait(lock, [this] { return !running_; });
    while (!queue_.empty()) run_oldest(lock);
    return false;
}

void Executor::work_loop() {
    std::weak_ptr<Executor> self;
    for (;;) {
        std::uint64_t expirations = 0;
        // Sleeps here nearly always: a thread that waits for its own operation has run it long
        // before.
        while (read(timer_fd_, &expirations, sizeof(expirations)) < 0 && errno == EINTR) {
        }
        // The last owner may be an operation that is dropped here, and its mutex is needed after
        // that. Null while another thread is destroying the executor: that one waits for this.
        std::shared_ptr<Executor> keep;
        bool goes_on;
        {
            Lock lock(mutex_);
            self = weak_from_this();
            keep = self.lock();
            goes_on = run_what_is_queued(lock);
        }
        if (!goes_on) return;
        const bool was_kept = keep != nullptr;
        keep.reset();
        // Destroyed in the line before, by this thread, or being destroyed by another, which has
        // nothing left to run: each queued operation would have been an owner.
        if (was_kept && self.expired()) return;
    }
}

}  // namespace fabricshm::torch_backend

#include "libfabricshm/torch/executor.hpp"

#include <pthread.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "libfabricshm/torch/work.hpp"

namespace fabricshm::torch_backend {
namespace {

using namespace std::chrono_literals;

itimerspec after(std::chrono::nanoseconds delay) {
    // A zero would disarm the timer.
    const std::int64_t ns = std::max<std::int64_t>(delay.count(), 1);
    itimerspec spec{};
    spec.it_value.tv_sec = ns / 1'000'000'000;
    spec.it_value.tv_nsec = ns % 1'000'000'000;
    return spec;
}

std::exception_ptr held_too_long(std::chrono::milliseconds limit) {
    return std::make_exception_ptr(std::runtime_error(
        "fabricshm: timeout passed: a callback of an earlier operation of this process group has "
        "not returned for " +
        std::to_string(limit.count()) + " ms, and what was called after it waits for it"));
}

// This thread, one of an executor, is running the callbacks of a scope.
class InScope {
  public:
    explicit InScope(std::shared_ptr<CallbackScope> scope) {
        scope_of_thread() = std::move(scope);
        thread_in_callback() = true;
    }
    ~InScope() {
        scope_of_thread() = nullptr;
        thread_in_callback() = false;
    }
    InScope(const InScope&) = delete;
    InScope& operator=(const InScope&) = delete;
};

// Once set, it stays. Relaxed: read under the mutex of the executor, which end_callbacks() takes
// after it has set it.
std::atomic<bool> g_exiting{false};

// Those that have had a thread.
struct Executors {
    std::mutex mutex;
    std::vector<std::weak_ptr<Executor>> all;

    void add(std::weak_ptr<Executor> executor) {
        std::lock_guard lock(mutex);
        all.erase(std::remove_if(all.begin(), all.end(), [](auto& one) { return one.expired(); }),
                  all.end());
        all.push_back(std::move(executor));
    }
    // A copy: an executor's mutex is taken before this one.
    std::vector<std::weak_ptr<Executor>> list() {
        std::lock_guard lock(mutex);
        return all;
    }
};

Executors& executors() {
    static auto* const instance = new Executors;  // never destroyed: threads outlive main()
    return *instance;
}

}  // namespace

bool Executor::exiting() {
    return g_exiting.load(std::memory_order_relaxed);
}

void Executor::end_callbacks(std::chrono::milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    g_exiting.store(true, std::memory_order_relaxed);
    for (const auto& one : executors().list()) {
        const auto executor = one.lock();
        if (!executor || getpid() != executor->owner_pid_) continue;
        Lock lock(executor->mutex_);
        executor->changed_.wait_until(lock, deadline, [&executor] {
            return executor->in_callbacks_ == 0 && executor->dropping_ == 0;
        });
    }
}

Executor::Executor(std::chrono::milliseconds hold_limit)
    : timer_fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)),
      owner_pid_(getpid()),
      hold_limit_(hold_limit) {
    TORCH_CHECK(timer_fd_ >= 0, "fabricshm: timerfd_create failed, errno ", errno);
}

// The threads are owners, so there are none left.
Executor::~Executor() {
    close(timer_fd_);
}

void Executor::shut_down() {
    if (getpid() != owner_pid_) return;  // the threads are the parent's
    Lock lock(mutex_);
    stopping_ = true;
    if (threads_ > 0) arm(0ns);
    followers_.notify_all();
    // From a callback, one of the threads would wait for itself, or for one that waits for it.
    if (thread_in_callback()) return;
    changed_.wait(lock, [this] { return threads_ == 0 || (exiting() && drained()); });
}

bool Executor::drain(Clock::time_point deadline) {
    if (getpid() != owner_pid_ || thread_in_callback()) return true;
    Lock lock(mutex_);
    rouse(0ns);
    return changed_.wait_until(lock, deadline, [this] { return drained(); });
}

void Executor::abandon(std::exception_ptr reason) {
    Lock lock(mutex_);
    if (!abandoned_) abandoned_ = std::move(reason);
    rouse(0ns);
    changed_.notify_all();  // waiters that may run what a callback has held
}

bool Executor::drained() const {
    if (!queue_.empty() || running_) return false;
    return exiting() || (callbacks_.empty() && open_.empty());
}

// The innermost scope of this group that this thread's callback belongs to.
CallbackScope* Executor::scope_here() const {
    for (CallbackScope* scope = scope_of_thread().get(); scope; scope = scope->outer.get()) {
        // A callback that has returned decides no order any more.
        if (scope->executor == this && scope->open) return scope;
    }
    return nullptr;
}

Place Executor::next_place(CallbackScope* scope) {
    const bool nested = scope != nullptr && scope->place.size() < kDeepestScope;
    Place place = nested ? scope->place : Place();
    place.push_back(nested ? ++scope->calls : ++calls_);
    return place;
}

void Executor::submit(WorkPtr work, std::chrono::nanoseconds delay) {
    Lock lock(mutex_);
    CallbackScope* const scope = scope_here();
    // It would never be run, and its waiter would wait for ever. What open callbacks call is run.
    TORCH_CHECK(!stopping_ || scope != nullptr, "fabricshm: the process group has been destroyed");
    work->place_ = next_place(scope);
    const bool first = queue_.empty() && callbacks_.empty() && !running_;
    const auto later = [](const WorkPtr& a, const WorkPtr& b) { return a->place_ < b->place_; };
    // Behind all others, unless a callback called it.
    const bool last = queue_.empty() || !later(work, queue_.back());
    auto at = last ? queue_.end() : std::upper_bound(queue_.begin(), queue_.end(), work, later);
    queue_.insert(at, std::move(work));
    // Behind another operation the wait is going to be long enough for a hop.
    rouse(first ? delay : 0ns);
}

void Executor::hurry(const CollectiveWork& work) {
    Lock lock(mutex_);
    stop_holding(work);
    rouse(0ns);
}

void Executor::expect_callbacks(CollectiveWork& work) {
    Lock lock(mutex_);
    stop_holding(work);
    if (!work.scope_ && !work.done()) {
        const ScopePtr& outer = scope_of_thread();
        const bool too_deep = outer && outer->depth >= kDeepestScope;
        auto scope = std::make_shared<CallbackScope>();
        scope->executor = this;
        scope->place = next_place(scope_here());
        scope->outer = too_deep ? nullptr : outer;
        scope->depth = scope->outer ? outer->depth + 1 : 0;
        work.scope_ = std::move(scope);
    }
    rouse(0ns);
}

// A callback that waits for what was called after it must not hold that up.
void Executor::stop_holding(const CollectiveWork& work) {
    for (CallbackScope* scope = scope_of_thread().get(); scope; scope = scope->outer.get()) {
        if (scope->executor == this && scope->precedes(work.place_)) scope->holds = false;
    }
}

const CallbackScope* Executor::holder_of_first() const {
    // There will be no end of callbacks, or nothing more is run that has an order.
    if (exiting() || abandoned_) return nullptr;
    for (const ScopePtr& scope : open_) {
        if (scope->holds && scope->precedes(queue_.front()->place_)) return scope.get();
    }
    return nullptr;
}

bool Executor::overdue() const {
    const CallbackScope* const holder = holder_of_first();
    return holder != nullptr && Clock::now() >= holder->progress + hold_limit_;
}

bool Executor::can_run() const {
    if (running_ || queue_.empty()) return false;
    return open_.empty() || holder_of_first() == nullptr || overdue();
}

void Executor::run_first(Lock& lock) {
    const std::exception_ptr refusal = overdue() ? held_too_long(hold_limit_) : abandoned_;
    // Taken before it is run: a waiter that comes now finds it running and waits.
    WorkPtr work = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    // Never throws: what goes wrong is kept in the work, for its waiters.
    const bool has_callbacks = work->run(refusal);
    lock.lock();
    running_ = false;
    for (const ScopePtr& scope : open_) {
        if (scope->contains(work->place_)) scope->progress = Clock::now();
    }
    if (has_callbacks) {
        // From this moment on, so that nothing which comes later slips in before them.
        const ScopePtr& scope = work->scope_;
        scope->open = true;
        scope->progress = Clock::now();
        open_.push_back(scope);
        callbacks_.push_back({[work] { work->fulfil(); }, scope, true});
    }
    ++dropping_;
    changed_.notify_all();
    const bool keep = exiting();
    lock.unlock();
    // May free tensors, which may take the interpreter's lock: not under ours.
    if (keep) (void)work.release();
    work.reset();
    lock.lock();
    if (--dropping_ == 0 && exiting()) changed_.notify_all();
}

void Executor::run_callback(Lock& lock) {
    Callback callback = std::move(callbacks_.front());
    callbacks_.pop_front();
    ++in_callbacks_;
    rouse(0ns);
    lock.unlock();
    {
        const InScope in_scope(callback.scope);
        callback.run();
        callback.run = nullptr;  // drops the work, as above
    }
    lock.lock();
    --in_callbacks_;
    if (callback.ends_scope) {
        callback.scope->open = false;
        open_.erase(std::find(open_.begin(), open_.end(), callback.scope));
    }
    changed_.notify_all();
}

void Executor::finish(const CollectiveWork& work) {
    Lock lock(mutex_);
    stop_holding(work);
    while (!work.over()) {
        // One at a time and in order, whichever thread runs it.
        if (can_run()) {
            run_first(lock);
            if (!callbacks_.empty()) rouse(0ns);  // never on a thread of the program
        } else {
            changed_.wait(lock);
        }
    }
    // The rest is the executor's: its wake-up may have come while this thread was running.
    rouse(0ns);
    if (stopping_ && threads_ > 0) arm(0ns);
}

bool Executor::wait_for(const CollectiveWork& work, std::chrono::milliseconds limit) {
    // Its caller gives up after `limit` and must not be caught in an operation.
    Lock lock(mutex_);
    stop_holding(work);
    rouse(0ns);
    return changed_.wait_for(lock, limit, [&work] { return work.over(); });
}

void Executor::call_back(std::function<void()> callback, ScopePtr scope) {
    Lock lock(mutex_);
    callbacks_.push_back({std::move(callback), std::move(scope), false});
    rouse(0ns);
}

// Sees to it that a thread of the executor does what there is to do, after `delay` at the latest.
void Executor::rouse(std::chrono::nanoseconds delay) {
    if ((callbacks_.empty() || exiting()) && !can_run()) {
        // What is running goes on with the next operation, or comes by here.
        if (running_ || queue_.empty()) return;
        // Held by a callback, whose end is noticed by its own thread, unless it does not come.
        delay = holder_of_first()->progress + hold_limit_ - Clock::now();
    }
    if (threads_ == in_callbacks_) start_thread();
    arm(delay);
    if (!timed_) followers_.notify_one();
}

// Detached, since any of them may be the one that drops the last other owner.
void Executor::start_thread() {
    try {
        std::thread thread([self = shared_from_this()] { self->work_loop(); });
        // Shown by top -H.
        pthread_setname_np(thread.native_handle(), "fabricshm-work");
        thread.detach();
        if (++threads_ == 1) executors().add(weak_from_this());
    } catch (const std::system_error& error) {
        // Waiters run their operations themselves.
        TORCH_WARN("fabricshm: cannot start a thread: ", error.what());
    }
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

// Does everything that can be done now.
void Executor::serve(Lock& lock) {
    for (;;) {
        if (!callbacks_.empty() && !exiting()) {
            run_callback(lock);
        } else if (can_run()) {
            run_first(lock);
        } else {
            return rouse(0ns);  // comes back for what is held
        }
    }
}

void Executor::work_loop() {
    Lock lock(mutex_);
    while (!stopping_ || !drained()) {
        // The timer would wake all of those that sleep on it.
        if (timed_) {
            followers_.wait(lock);
            continue;
        }
        timed_ = true;
        lock.unlock();
        std::uint64_t expirations = 0;
        // Sleeps here nearly always: a thread that waits for its own operation has run it long
        // before.
        while (read(timer_fd_, &expirations, sizeof(expirations)) < 0 && errno == EINTR) {
        }
        lock.lock();
        timed_ = armed_ = false;
        serve(lock);
    }
    --threads_;
    // One thread has heard of the end; it passes that on.
    if (threads_ > 0) arm(0ns);
    followers_.notify_all();
    changed_.notify_all();
}

}  // namespace fabricshm::torch_backend

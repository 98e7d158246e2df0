// Runs the collectives of one process group, one after another, on whichever thread is cheapest.
//
// A hop to another thread costs about 50 us, fifty times a small allreduce. So an operation waits
// a moment in the queue before a thread of the executor takes it: when its caller asks for the
// result meanwhile, as every blocking call does at once, the caller runs it itself. At any time one
// thread at most runs operations, always the first in the order of callback_scope.hpp, so all ranks
// see one order. The caller of an asynchronous operation never blocks: it could be the one its
// peers are waiting for.
//
// Callbacks of futures run on the executor's threads, and may wait for further operations: when all
// of these threads are inside callbacks and there is something to do, there will be one more.

#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "libfabricshm/torch/callback_scope.hpp"

namespace fabricshm::torch_backend {

class CollectiveWork;
using WorkPtr = c10::intrusive_ptr<CollectiveWork>;

/// One per process group. Every call may come from any thread. Only ever in a shared_ptr, which the
/// operations and the executor's threads share.
class Executor : public std::enable_shared_from_this<Executor> {
  public:
    /// `hold_limit`: how long a callback may go on without an operation of its own while others
    /// wait for its end. After that they fail, and say why.
    explicit Executor(std::chrono::milliseconds hold_limit);
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    /// Queues `work`. The executor takes it after `delay` unless a waiter does before. Raises
    /// after shut_down(), except in callbacks that run still.
    void submit(WorkPtr work, std::chrono::nanoseconds delay);

    /// The executor should take what is queued now: `work` is polled. Costs a system call at most.
    void hurry(const CollectiveWork& work);
    /// As hurry(), for `work` that is going to have a future: gives its callbacks their place.
    void expect_callbacks(CollectiveWork& work);

    /// Returns when `work` is done and its callbacks have ended (in a callback: when it is done);
    /// runs queued operations on the calling thread meanwhile.
    void finish(const CollectiveWork& work);
    /// As finish(), but leaves the running to the executor. False: not within `limit`.
    bool wait_for(const CollectiveWork& work, std::chrono::milliseconds limit);

    /// Runs `callback`, which may block, on a thread of the executor. Also after shut_down(). What
    /// it calls has its place in `scope`, the one that its future was asked for in.
    void call_back(std::function<void()> callback, std::shared_ptr<CallbackScope> scope);

    /// Waits until all that was submitted and its callbacks have ended; in a callback it does not
    /// wait. False: not by `deadline`.
    bool drain(std::chrono::steady_clock::time_point deadline);

    /// The group has ended for good: what is queued, and what is submitted later, fails with
    /// `reason`, in whatever order. The operation that runs is the caller's to end.
    void abandon(std::exception_ptr reason);

    /// Runs what is queued and ends the threads. Nothing may be submitted afterwards. In a callback
    /// it does not wait.
    void shut_down();

    /// The interpreter is about to end, and with it every thread that asks for its lock: waits, at
    /// most `limit`, for callbacks that run. None begins after this, in any group, and what
    /// operations held is kept.
    static void end_callbacks(std::chrono::milliseconds limit);
    /// After end_callbacks().
    static bool exiting();

  private:
    using Lock = std::unique_lock<std::mutex>;
    using Clock = std::chrono::steady_clock;
    using ScopePtr = std::shared_ptr<CallbackScope>;

    struct Callback {
        std::function<void()> run;
        ScopePtr scope;  // null: outside of other callbacks
        bool ends_scope;
    };

    void work_loop();
    void serve(Lock& lock);
    bool can_run() const;
    bool overdue() const;
    void run_first(Lock& lock);
    void run_callback(Lock& lock);
    bool drained() const;

    const CallbackScope* holder_of_first() const;
    CallbackScope* scope_here() const;
    Place next_place(CallbackScope* scope);
    void stop_holding(const CollectiveWork& work);

    void rouse(std::chrono::nanoseconds delay);
    void start_thread();
    void arm(std::chrono::nanoseconds delay);

    std::mutex mutex_;
    std::condition_variable changed_;    // an operation, a callback or a thread has ended
    std::condition_variable followers_;  // threads besides the one that sleeps on the timer
    std::deque<WorkPtr> queue_;          // by place
    std::deque<Callback> callbacks_;     // to be run
    std::vector<ScopePtr> open_;         // of callbacks that run, or will as soon as a thread can
    std::uint64_t calls_ = 0;            // collectives and futures outside of callbacks
    bool running_ = false;               // some thread is running an operation
    bool stopping_ = false;
    std::exception_ptr abandoned_;  // what queued operations fail with, without being run
    std::size_t dropping_ = 0;      // threads that drop what operations held
    std::size_t threads_ = 0;       // of the executor, and
    std::size_t in_callbacks_ = 0;  // how many of them are inside callbacks
    bool timed_ = false;            // one of them sleeps on the timer
    bool armed_ = false;            // the timer will fire, at:
    Clock::time_point fires_at_;
    int timer_fd_;   // what the threads sleep on: arming it wakes none before its time
    int owner_pid_;  // a forked child has no threads
    std::chrono::milliseconds hold_limit_;
};

}  // namespace fabricshm::torch_backend

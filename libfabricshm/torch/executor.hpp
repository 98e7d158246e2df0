// Runs the collectives of one process group, one after another, on whichever thread is cheapest.
//
// A hop to another thread costs about 50 us, fifty times a small allreduce. So an operation waits
// a moment in the queue before the worker thread takes it: when its caller asks for the result
// meanwhile, as every blocking call does at once, the caller runs it itself. At any time one thread
// at most runs operations, always the oldest, so all ranks see one order. The caller of an
// asynchronous operation never blocks: it could be the one its peers are waiting for.

#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace fabricshm::torch_backend {

class CollectiveWork;
using WorkPtr = c10::intrusive_ptr<CollectiveWork>;

/// One per process group. Every call may come from any thread. Only ever in a shared_ptr, which the
/// operations share.
class Executor : public std::enable_shared_from_this<Executor> {
  public:
    Executor();
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    /// Queues `work`. The worker thread takes it after `patience` unless a waiter does before.
    /// Raises after shut_down().
    void submit(WorkPtr work, std::chrono::nanoseconds patience);

    /// The worker should take what is queued now: somebody looks for progress without waiting.
    /// Costs a system call at most.
    void hurry();

    /// Returns when `work` is done; runs queued operations on the calling thread meanwhile.
    void finish(const CollectiveWork& work);
    /// As finish(), but leaves the running to the worker. False: not done within `limit`.
    bool wait_for(const CollectiveWork& work, std::chrono::milliseconds limit);

    /// Runs what is queued and ends the worker. Nothing may be submitted afterwards.
    void shut_down();

  private:
    using Lock = std::unique_lock<std::mutex>;
    using Clock = std::chrono::steady_clock;

    void work_loop();
    bool run_what_is_queued(Lock& lock);
    void run_oldest(Lock& lock);
    void arm(std::chrono::nanoseconds delay);

    std::mutex mutex_;
    std::condition_variable changed_;  // an operation has ended
    std::deque<WorkPtr> queue_;
    bool running_ = false;  // some thread is running an operation
    bool stopping_ = false;
    bool armed_ = false;  // the timer will fire, at:
    Clock::time_point fires_at_;
    int timer_fd_;   // what the worker sleeps on: arming it wakes nobody before its time
    int owner_pid_;  // a forked child has no worker
    std::thread worker_;
};

}  // namespace fabricshm::torch_backend

// Worker: the thread on which a group runs the collectives that were started, one after the other.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace fabricshm {

/// Runs jobs in the order given. Idle it sleeps. Ends, after the jobs it holds, when destroyed.
class Worker {
  public:
    Worker();
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    void push(std::function<void()> job);

    /// Nothing queued and nothing running.
    bool idle() const;

  private:
    void loop();

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;
    bool running_ = false;  // a job is out of the queue and not finished
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace fabricshm

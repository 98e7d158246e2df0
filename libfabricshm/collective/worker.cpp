#include "libfabricshm/collective/worker.hpp"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace fabricshm {

namespace {

// The program's signals are for the program's own threads.
std::thread start_without_signals(std::function<void()> body) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread(std::move(body));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

}  // namespace

Worker::Worker() : thread_(start_without_signals([this] { loop(); })) {}

Worker::~Worker() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Worker::push(std::function<void()> job) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
}

bool Worker::idle() const {
    const std::lock_guard lock(mutex_);
    return jobs_.empty() && !running_;
}

void Worker::loop() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
        // Not before everything that was queued has run.
        if (jobs_.empty()) return;
        const auto job = std::move(jobs_.front());
        jobs_.pop_front();
        running_ = true;
        lock.unlock();
        // Without the mutex: it may take as long as its deadline, and more may be queued meanwhile.
        job();
        lock.lock();
        running_ = false;
    }
}

}  // namespace fabricshm

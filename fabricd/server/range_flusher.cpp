#include "fabricd/server/range_flusher.hpp"

#include <memory>
#include <utility>

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

RangeFlusher::RangeFlusher(Flush flush) : flush_(std::move(flush)) {
    thread_ = std::thread([this] { serve(); });
}

RangeFlusher::~RangeFlusher() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void RangeFlusher::flush(std::set<OpenRange> ranges, Done done) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back({std::move(ranges), std::move(done)});
    }
    changed_.notify_all();
}

Result<void> RangeFlusher::flush_and_wait(std::set<OpenRange> ranges) {
    struct Wait {
        std::mutex mutex;
        std::condition_variable changed;
        bool is_done = false;
        Result<void> outcome;
    };
    // Shared: the caller may be gone before the flusher has let go of the mutex.
    const auto wait = std::make_shared<Wait>();
    flush(std::move(ranges), [wait](const Result<void>& flushed) {
        const std::lock_guard lock(wait->mutex);
        wait->outcome = flushed;
        wait->is_done = true;
        wait->changed.notify_all();
    });
    std::unique_lock lock(wait->mutex);
    wait->changed.wait(lock, [&] { return wait->is_done; });
    return wait->outcome;
}

void RangeFlusher::serve() {
    for (;;) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_stopping_ || !jobs_.empty(); });
        const std::vector<Job> jobs = std::exchange(jobs_, {});
        if (jobs.empty()) return;
        lock.unlock();
        run(jobs);
    }
}

// What their processes wrote they wrote before this call.
void RangeFlusher::run(const std::vector<Job>& jobs) {
    std::set<OpenRange> ranges;
    for (const Job& job : jobs) ranges.insert(job.ranges.begin(), job.ranges.end());
    const Result<void> flushed = flush_all(ranges);
    for (const Job& job : jobs) job.done(flushed);
}

Result<void> RangeFlusher::flush_all(const std::set<OpenRange>& ranges) {
    for (const OpenRange& range : ranges) {
        {
            const std::lock_guard lock(mutex_);
            if (is_stopping_) return Error{Errc::kClosed, 0, "flush"};
        }
        FABRIC_TRY_VOID(flush_(range));
    }
    return {};
}

}  // namespace fabricd

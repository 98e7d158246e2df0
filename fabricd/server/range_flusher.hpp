// RangeFlusher: the thread that writes ranges of the pool's device out of this host's caches.
//
// That takes some 0.5 s a GiB, in which the control thread would notice no death.

#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "fabricd/pool/books.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// Any thread may call. What comes while it works is done together, a range that is asked for many
/// times once: the ranks of one job end at the same time, with one arena.
class RangeFlusher {
  public:
    using Flush = std::function<fabricshm::Result<void>(const OpenRange& range)>;
    /// Called on the flusher's thread, in the order of the calls; kClosed when the flusher ended
    /// first.
    using Done = std::function<void(const fabricshm::Result<void>& flushed)>;

    explicit RangeFlusher(Flush flush);
    /// Ends after the range that is under way.
    ~RangeFlusher();
    RangeFlusher(const RangeFlusher&) = delete;
    RangeFlusher& operator=(const RangeFlusher&) = delete;

    void flush(std::set<OpenRange> ranges, Done done);
    /// Returns when these ranges, and all that was asked for before, are out.
    fabricshm::Result<void> flush_and_wait(std::set<OpenRange> ranges);

  private:
    struct Job {
        std::set<OpenRange> ranges;
        Done done;
    };
    void serve();
    void run(const std::vector<Job>& jobs);
    fabricshm::Result<void> flush_all(const std::set<OpenRange>& ranges);

    const Flush flush_;
    std::mutex mutex_;  // of what follows
    std::condition_variable changed_;
    std::vector<Job> jobs_;
    bool is_stopping_ = false;
    std::thread thread_;
};

}  // namespace fabricd

// JournalCompactor: the thread on which a journal that has grown is written again; see
// fabricd/pool/compaction.hpp.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "fabricd/pool/compaction.hpp"

namespace fabricd {

/// One compaction at a time. The public calls are for the control thread.
class JournalCompactor {
  public:
    /// Takes a result to the control thread; false when that no longer listens.
    using Post = std::function<bool(std::function<void()>)>;
    using Done = std::function<void(const fabricshm::Result<void>&)>;

    explicit JournalCompactor(Post post) : post_(std::move(post)) {}
    ~JournalCompactor() { stop(); }

    /// `done` is called on the control thread, once for each compaction that was begun.
    void start(Done done);

    /// Breaks off what is being written; the journal stays as it is. Idempotent.
    void stop() noexcept;

    bool is_busy() const noexcept { return compaction_ != nullptr; }

    /// Nothing while it is busy. `journal` lives until stop(). Fails as Compaction::begin(), and
    /// then `done` is not called.
    fabricshm::Result<void> begin(Journal& journal);

  private:
    void serve();
    void order(std::function<void()> work);
    void write();
    void written(const fabricshm::Result<void>& outcome);

    const Post post_;
    Done done_;
    std::thread thread_;

    // Of the control thread.
    Journal* journal_ = nullptr;
    std::shared_ptr<Compaction> compaction_;

    std::mutex mutex_;  // guards what follows; never held while something is written
    std::condition_variable changed_;
    std::deque<std::function<void()>> orders_;
    bool stopping_ = false;
};

}  // namespace fabricd

// PoolWorker: the thread that makes, grows and destroys arenas.
//
// Committing an arena takes about 0.3 s/GiB. On the control thread that would keep deaths from
// being noticed for seconds, and any client could ask for it.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "fabricd/pool/registry.hpp"
#include "libfabricshm/machine/pool_backend.hpp"

namespace fabricd {

/// Between start() and stop() the backend belongs to the worker's thread. The public calls are for
/// the control thread.
class PoolWorker final : public PoolWork {
  public:
    /// Takes a result to the control thread; false when that no longer listens.
    using Post = std::function<bool(std::function<void()>)>;
    using Done = std::function<void(ArenaId, Result<fabricshm::PoolPiece>)>;
    using Grown = std::function<void(ArenaId, Bytes to, Result<void>)>;

    PoolWorker(fabricshm::PoolBackend& backend, Post post);
    ~PoolWorker() override { stop(); }

    /// `made`, `adopted` and `grown` are called on the control thread.
    void start(Done made, Done adopted, Grown grown);

    /// Destroys what is still to be destroyed, makes nothing more, ends the thread. Idempotent.
    void stop() noexcept;

    void create(ArenaId arena, const std::string& name, std::uint32_t uid, Bytes bytes) override;
    void adopt(ArenaId arena, Bytes bytes, Bytes uncommitted, fabricshm::Fd presented) override;
    void grow(ArenaId arena, Bytes to, Bytes need) override;
    void destroy(ArenaId arena) noexcept override;

    /// After the last finished piece of work. Any thread.
    fabricshm::PoolTotals totals() const override;

  private:
    struct Job {
        std::function<void()> work;
        bool even_when_stopping = false;
    };
    void enqueue(Job job);
    void serve();
    void count();
    void report(const Done& done, ArenaId arena, Result<fabricshm::PoolPiece> piece);

    fabricshm::PoolBackend& backend_;
    Post post_;
    Done made_;
    Done adopted_;
    Grown grown_;
    std::thread thread_;

    mutable std::mutex mutex_;  // guards what follows; never held while the backend works
    std::condition_variable changed_;
    std::deque<Job> jobs_;
    bool stopping_ = false;
    fabricshm::PoolTotals totals_;
};

}  // namespace fabricd

// PoolWorker: the thread that makes, grows and destroys arenas.
//
// Committing an arena takes about 0.3 s/GiB. On the control thread that would keep deaths from
// being noticed for seconds, and any client could ask for it. Nor may it hold up other arenas: what
// is quick goes first, in the order it came, and what takes long is done in slices of some 20 ms,
// one arena after the other. The work on one arena is done in the order it came.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
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

    /// Before start(): at once, so that no client sees the pool without them.
    void expect(ArenaId arena, Bytes committed) override;
    void create(ArenaId arena, const std::string& name, std::uint32_t uid, Bytes bytes) override;
    void adopt(ArenaId arena, Bytes bytes, Bytes uncommitted,
               fabricshm::PresentedFiles presented) override;
    void grow(ArenaId arena, Bytes to, Bytes need) override;
    void shrink(ArenaId arena, Bytes to) override;
    void destroy(ArenaId arena) noexcept override;
    void forget(ArenaId arena, std::shared_ptr<void> records) noexcept override;

    /// After the last finished piece of work. Any thread.
    fabricshm::PoolTotals totals() const override;

    /// What is committed before others have their turn.
    static constexpr Bytes kSlice = 64 * fabricshm::kMiB;
    static_assert(kSlice % fabricshm::kArenaStep == 0);

  private:
    struct Job {
        std::function<bool()> work;  // a slice of it; true when there is no more
        bool is_quick = false;
        bool even_when_stopping = false;
        std::uint64_t number = 0;  // in the order they came
    };
    void enqueue(ArenaId arena, Job job);
    void serve();
    ArenaId take_turn();
    bool grow_slice(ArenaId arena, Bytes to, Bytes need);
    void note_committed(ArenaId arena, const Result<fabricshm::PoolPiece>& piece);
    void count();
    void report(const Done& done, ArenaId arena, Result<fabricshm::PoolPiece> piece);

    fabricshm::PoolBackend& backend_;
    Post post_;
    Done made_;
    Done adopted_;
    Grown grown_;
    std::thread thread_;
    std::map<ArenaId, Bytes> committed_;  // the worker's own

    mutable std::mutex mutex_;  // guards what follows; never held while the backend works
    std::condition_variable changed_;
    std::map<ArenaId, std::deque<Job>> jobs_;  // no empty ones
    std::deque<ArenaId> turns_;  // those that have jobs; one that was served goes to the end
    std::uint64_t last_job_ = 0;
    int quick_ones_ = 0;  // in a row, while something else waits
    bool stopping_ = false;
    fabricshm::PoolTotals totals_;
};

}  // namespace fabricd

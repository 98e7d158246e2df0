#include "fabricd/server/pool_worker.hpp"

#include <memory>
#include <utility>

namespace fabricd {

PoolWorker::PoolWorker(fabricshm::PoolBackend& backend, Post post)
    : backend_(backend), post_(std::move(post)), totals_(backend.totals()) {}

void PoolWorker::start(Done made, Done adopted, Grown grown) {
    made_ = std::move(made);
    adopted_ = std::move(adopted);
    grown_ = std::move(grown);
    thread_ = std::thread([this] { serve(); });
}

void PoolWorker::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void PoolWorker::create(ArenaId arena, const std::string& name, std::uint32_t uid, Bytes bytes) {
    // Dropped when stopping: nobody would hear of the result, and the memory would be made for
    // nothing.
    enqueue({[=, this] { report(made_, arena, backend_.create(raw(arena), name, uid, bytes)); },
             false});
}

void PoolWorker::adopt(ArenaId arena, Bytes bytes, Bytes uncommitted, fabricshm::Fd presented) {
    // std::function wants something that can be copied; a descriptor cannot be.
    auto fd = std::make_shared<fabricshm::Fd>(std::move(presented));
    enqueue({[=, this] {
                 report(adopted_, arena,
                        backend_.adopt(raw(arena), bytes, std::move(*fd), uncommitted));
             },
             false});
}

void PoolWorker::grow(ArenaId arena, Bytes to, Bytes need) {
    enqueue({[=, this] {
                 const Result<void> done = backend_.grow(raw(arena), to, need);
                 count();
                 post_([=, this] { grown_(arena, to, done); });
             },
             false});
}

void PoolWorker::destroy(ArenaId arena) noexcept {
    enqueue({[=, this] {
                 // Done even when stopping: a device remembers its arenas, and this one would come
                 // back as a leftover.
                 backend_.destroy(raw(arena));
                 count();
             },
             true});
}

fabricshm::PoolTotals PoolWorker::totals() const {
    const std::lock_guard lock(mutex_);
    return totals_;
}

void PoolWorker::enqueue(Job job) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
}

void PoolWorker::serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        // In order, one at a time: an arena's destruction has to follow its making.
        const Job job = std::move(jobs_.front());
        jobs_.pop_front();
        if (stopping_ && !job.even_when_stopping) continue;
        lock.unlock();
        job.work();
        lock.lock();
    }
}

// On the worker's thread; others ask totals(), and backends are not thread-safe.
void PoolWorker::count() {
    const fabricshm::PoolTotals totals = backend_.totals();
    const std::lock_guard lock(mutex_);
    totals_ = totals;
}

void PoolWorker::report(const Done& done, ArenaId arena, Result<fabricshm::PoolPiece> piece) {
    count();  // before anybody hears of it and asks
    auto carried = std::make_shared<Result<fabricshm::PoolPiece>>(std::move(piece));
    post_([&done, arena, carried] { done(arena, std::move(*carried)); });
}

}  // namespace fabricd

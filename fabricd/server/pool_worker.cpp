#include "fabricd/server/pool_worker.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "libfabricshm/base/check.hpp"

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

void PoolWorker::expect(ArenaId arena, Bytes committed) {
    FABRIC_CHECK(!thread_.joinable());  // from then on the backend is the thread's
    backend_.expect(raw(arena), committed);
    count();
}

void PoolWorker::create(ArenaId arena, const std::string& name, std::uint32_t uid, Bytes bytes) {
    const bool is_quick = !backend_.commits_whole() || bytes <= fabricshm::kArenaStep;
    // Dropped when stopping: the result would reach no client, and the memory would be made for
    // nothing.
    enqueue(arena, {[=, this] {
                        auto piece = backend_.create(raw(arena), name, uid, bytes);
                        note_committed(arena, piece);
                        report(made_, arena, std::move(piece));
                        return true;
                    },
                    is_quick, false});
}

void PoolWorker::adopt(ArenaId arena, Bytes bytes, Bytes uncommitted,
                       fabricshm::PresentedFiles presented) {
    // std::function wants something that can be copied; a descriptor cannot be.
    auto files = std::make_shared<fabricshm::PresentedFiles>(std::move(presented));
    enqueue(arena, {[=, this] {
                        auto piece =
                            backend_.adopt(raw(arena), bytes, std::move(*files), uncommitted);
                        note_committed(arena, piece);
                        report(adopted_, arena, std::move(piece));
                        return true;
                    },
                    true, false});
}

void PoolWorker::grow(ArenaId arena, Bytes to, Bytes need) {
    enqueue(arena, {[=, this] { return grow_slice(arena, to, need); }, false, false});
}

void PoolWorker::shrink(ArenaId arena, Bytes to) {
    // Quick, some 0.1 s/GiB: a request waits for it.
    enqueue(arena, {[=, this] {
                        const Result<void> done = backend_.shrink(raw(arena), to);
                        if (done.ok()) committed_[arena] = std::min(committed_[arena], to);
                        count();
                        post_([=, this] { grown_(arena, to, done); });
                        return true;
                    },
                    true, false});
}

void PoolWorker::destroy(ArenaId arena) noexcept {
    // Quick, so that what comes after it finds the memory free.
    enqueue(arena, {[=, this] {
                        // Done even when stopping: a device remembers its arenas, and this one
                        // would come back as a leftover.
                        backend_.destroy(raw(arena));
                        committed_.erase(arena);
                        count();
                        return true;
                    },
                    true, true});
}

// Their end is inside the job: that of the job itself is under the lock.
void PoolWorker::forget(ArenaId arena, std::shared_ptr<void> records) noexcept {
    enqueue(arena, {[records = std::move(records)]() mutable {
                        records.reset();
                        return true;
                    },
                    true, true});
}

// After a failure what the slices before have committed stays so, and is not committed again.
bool PoolWorker::grow_slice(ArenaId arena, Bytes to, Bytes need) {
    Bytes& committed = committed_[arena];
    const Bytes next = std::min(to, committed + kSlice);
    const Result<void> done = backend_.grow(raw(arena), next, need);
    if (done.ok()) committed = std::max(committed, next);
    if (done.ok() && next < to) return false;
    count();
    post_([=, this] { grown_(arena, to, done); });
    return true;
}

void PoolWorker::note_committed(ArenaId arena, const Result<fabricshm::PoolPiece>& piece) {
    if (piece.ok()) committed_[arena] = piece->bytes - piece->uncommitted;
}

fabricshm::PoolTotals PoolWorker::totals() const {
    const std::lock_guard lock(mutex_);
    return totals_;
}

void PoolWorker::enqueue(ArenaId arena, Job job) {
    {
        const std::lock_guard lock(mutex_);
        std::deque<Job>& jobs = jobs_[arena];
        if (jobs.empty()) turns_.push_back(arena);
        job.number = ++last_job_;
        jobs.push_back(std::move(job));
    }
    changed_.notify_one();
}

// The one whose next job is quick and came first: the making of an arena finds free what was given
// back before. Now and then the first whose job is not, since quick ones can come without end.
ArenaId PoolWorker::take_turn() {
    constexpr int kQuickInRow = 16;
    const auto is_quick = [this](ArenaId arena) { return jobs_.at(arena).front().is_quick; };
    auto quick = turns_.end();
    for (auto at = turns_.begin(); at != turns_.end(); ++at) {
        const auto number = [this](ArenaId arena) { return jobs_.at(arena).front().number; };
        const bool is_earlier = quick == turns_.end() || number(*at) < number(*quick);
        if (is_quick(*at) && is_earlier) quick = at;
    }
    const auto slow = std::find_if_not(turns_.begin(), turns_.end(), is_quick);
    const bool slow_has_waited = slow != turns_.end() && quick_ones_ >= kQuickInRow;
    const auto next = quick == turns_.end() || slow_has_waited ? slow : quick;
    quick_ones_ = next == quick && slow != turns_.end() ? quick_ones_ + 1 : 0;
    const ArenaId arena = *next;
    turns_.erase(next);
    return arena;
}

void PoolWorker::serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        // One at a time, in the order of its arena: a destruction has to follow the making.
        const ArenaId arena = take_turn();
        // Stays where it is while others are put behind it.
        const Job& job = jobs_.at(arena).front();
        bool done = stopping_ && !job.even_when_stopping;
        if (!done) {
            lock.unlock();
            done = job.work();
            lock.lock();
        }
        std::deque<Job>& jobs = jobs_.at(arena);
        if (done) jobs.pop_front();
        if (jobs.empty()) {
            jobs_.erase(arena);
        } else {
            turns_.push_back(arena);
        }
    }
}

// On the worker's thread; others ask totals(), and backends are not thread-safe.
void PoolWorker::count() {
    const fabricshm::PoolTotals totals = backend_.totals();
    const std::lock_guard lock(mutex_);
    totals_ = totals;
}

void PoolWorker::report(const Done& done, ArenaId arena, Result<fabricshm::PoolPiece> piece) {
    count();  // before a client hears of it and asks
    auto carried = std::make_shared<Result<fabricshm::PoolPiece>>(std::move(piece));
    post_([&done, arena, carried] { done(arena, std::move(*carried)); });
}

}  // namespace fabricd

#include "fabricd/server/shard_mover.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "fabricd/server/token_bucket.hpp"
#include "kernels/copy.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/machine/node_pages.hpp"
#include "libfabricshm/os/poison.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::ShardHeader;
using fabricshm::ShardWord;

namespace {

// Large enough that the bookkeeping between two pieces costs nothing beside them, small enough that
// a limit of 100 MB/s is kept within 10 ms and a cancelled copy ends soon.
constexpr Bytes kPieceBytes = fabricshm::kMiB;

// How long one copy waits for an owner who is writing, and how often it looks.
constexpr Duration kOwnerPatience = std::chrono::milliseconds(250);
constexpr Duration kOwnerLook = std::chrono::microseconds(500);

// A cancelled copy that sleeps is woken by nobody.
constexpr Duration kSleepMost = std::chrono::milliseconds(20);

}  // namespace

void ShardMover::start(Done done) {
    done_ = std::move(done);
    thread_ = std::thread([this] { serve(); });
}

void ShardMover::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void ShardMover::copy(CopyJob job) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
}

void ShardMover::serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) return;
        const CopyJob job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        auto seen = std::make_shared<Result<ShardWord>>(make(job));
        // The mutex of the other thread's queue orders everything above before the swap.
        post_([this, shard = job.shard, seen] { done_(shard, std::move(*seen)); });
        lock.lock();
    }
}

// The word as it was before the first byte was read: should the owner have written since, the swap
// sees another one and the copy is worth nothing.
Result<ShardWord> ShardMover::make(const CopyJob& job) {
    // A lost page reads as zeros here and is counted; a hole that a client punched into a file that
    // is out of memory is the same signal.
    const fabricshm::PoisonGuard guard;
    FABRIC_TRY(const ShardWord seen, wait_for_owner(job));
    FAULT_POINT("move.copying");
    if (job.node >= 0) FABRIC_TRY_VOID(fabricshm::place_on_node(job.to.data, job.bytes, job.node));
    FABRIC_TRY_VOID(fill(job));
    if (guard.hit()) return Error{Errc::kPoisoned, 0, "copy shard"};
    return seen;
}

Result<ShardWord> ShardMover::wait_for_owner(const CopyJob& job) {
    const auto& header = *reinterpret_cast<const ShardHeader*>(job.header.data);
    const TimePoint deadline = fabricshm::deadline_after(Clock::now(), kOwnerPatience);
    for (;;) {
        const ShardWord seen = fabricshm::word_of(header);
        if (!seen.writing()) return seen;
        const TimePoint now = Clock::now();
        if (now >= deadline) return Error{Errc::kBusy, 0, "copy shard: the owner writes"};
        if (!pause_until(fabricshm::deadline_after(now, kOwnerLook), *job.progress)) {
            return Error{Errc::kClosed, 0, "copy shard"};
        }
    }
}

Result<void> ShardMover::fill(const CopyJob& job) {
    const Bytes rate = job.bytes_per_second != 0 ? job.bytes_per_second : bytes_per_second_;
    TokenBucket bucket(rate, Clock::now());
    // Relaxed: for people who look at it; the swap does not depend on it.
    job.progress->done.store(0, std::memory_order_relaxed);
    for (Bytes done = 0; done < job.bytes;) {
        const Bytes piece = std::min(kPieceBytes, job.bytes - done);
        if (!pause_until(bucket.take(piece, Clock::now()), *job.progress)) {
            return Error{Errc::kClosed, 0, "copy shard"};
        }
        // Past the cache: nobody will read these bytes on this core, and those who train would
        // lose what they have there. It ends with a store fence.
        kernels::copy(job.to.data + done, job.from.data + done, piece, true);
        done += piece;
        job.progress->done.store(done, std::memory_order_relaxed);
    }
    return {};
}

// False when the copy is to be broken off.
bool ShardMover::pause_until(TimePoint when, const CopyProgress& progress) {
    for (;;) {
        // Relaxed: seen a piece later it is as good.
        if (progress.cancelled.load(std::memory_order_relaxed)) return false;
        std::unique_lock lock(mutex_);
        if (stopping_) return false;
        const TimePoint now = Clock::now();
        if (now >= when) return true;
        changed_.wait_until(lock, std::min(when, fabricshm::deadline_after(now, kSleepMost)));
    }
}

}  // namespace fabricd

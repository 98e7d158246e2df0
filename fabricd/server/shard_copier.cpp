#include "fabricd/server/shard_copier.hpp"

#include <algorithm>
#include <utility>

#include "kernels/copy.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/machine/node_pages.hpp"
#include "libfabricshm/os/poison.hpp"

namespace fabricd {

using fabricshm::ShardHeader;
using fabricshm::ShardWord;

namespace {

// Large enough that the bookkeeping between two pieces costs nothing next to them, small enough
// that a limit of 100 MB/s is kept within 10 ms and a cancelled copy ends soon.
constexpr Bytes kPieceBytes = fabricshm::kMiB;

// How long one copy waits for an owner that is writing, and how often it polls.
constexpr Duration kOwnerTimeout = std::chrono::milliseconds(250);
constexpr Duration kOwnerLook = std::chrono::microseconds(500);

}  // namespace

ShardCopier::ShardCopier(CopyJob job, TimePoint now)
    : job_(std::move(job)),
      bucket_(job_.bytes_per_second, now),
      due_(now),
      timeout_(fabricshm::deadline_after(now, kOwnerTimeout)) {
    FABRIC_CHECK(job_.progress != nullptr);
    // Relaxed, here and below: for display only; the swap does not depend on it.
    job_.progress->done.store(0, std::memory_order_relaxed);
}

std::optional<ShardCopier::Outcome> ShardCopier::step(TokenBucket& all, PresentPages& pages,
                                                      TimePoint now) {
    if (cancelled()) return Outcome(Error{Errc::kClosed, 0, "copy shard"});
    if (now < due_) return std::nullopt;
    if (stage_ == Stage::kOwner) return await_owner(now);
    if (done_ < job_.bytes) {
        if (!pay(all, now)) return std::nullopt;
        if (const auto moved = move_piece(pages); !moved.ok()) return Outcome(moved.error());
    }
    return done_ < job_.bytes ? std::nullopt : std::optional(Outcome(seen_));
}

std::optional<ShardCopier::Outcome> ShardCopier::await_owner(TimePoint now) {
    const auto& header = *reinterpret_cast<const ShardHeader*>(job_.header.data);
    const fabricshm::PoisonGuard guard;
    seen_ = fabricshm::word_of(header);
    if (guard.hit()) return Outcome(Error{Errc::kPoisoned, 0, "copy shard"});
    if (!seen_.writing()) {
        FAULT_POINT("move.copying");
        stage_ = Stage::kOrder;
    } else if (now >= timeout_) {
        return Outcome(Error{Errc::kBusy, 0, "copy shard: the owner writes"});
    } else {
        due_ = fabricshm::deadline_after(now, kOwnerLook);
    }
    return std::nullopt;
}

// True when the next piece may be moved now. First out of its order's own bucket: one that has to
// wait there must not hold what others could have from the common one.
bool ShardCopier::pay(TokenBucket& all, TimePoint now) {
    if (stage_ == Stage::kOrder) {
        due_ = bucket_.take(piece(), now);
        stage_ = Stage::kShare;
        if (due_ > now) return false;
    }
    if (stage_ == Stage::kShare) {
        due_ = all.take(piece(), now);
        stage_ = Stage::kPiece;
    }
    return due_ <= now;
}

Result<void> ShardCopier::move_piece(PresentPages& pages) {
    FABRIC_CHECK(stage_ == Stage::kPiece);  // paid for, from both buckets
    const Bytes bytes = piece();
    FABRIC_CHECK(bytes > 0 && done_ + bytes <= job_.bytes);
    const auto lost = [](const ArenaSpan& span, Bytes at, Bytes length) {
        return fabricshm::any_lost() && fabricshm::find_lost(span.data + at, length) != nullptr;
    };
    std::byte* const to = job_.to.data + done_;
    if (job_.node >= 0) FABRIC_TRY_VOID(fabricshm::place_on_node(to, bytes, job_.node));
    FABRIC_TRY_VOID(pages.ensure(job_.from, done_, bytes));
    FABRIC_TRY_VOID(pages.ensure(job_.to, done_, bytes));
    // A lost page reads as zeros here and is counted; a hole that a client punched into a file that
    // is out of memory is the same signal.
    const fabricshm::PoisonGuard guard;
    // Past the cache: these bytes will not be read on this core, and those that train would lose
    // what they have there. It ends with a store fence.
    kernels::copy(to, job_.from.data + done_, bytes, true);
    // Also what was lost earlier: an empty page lies there since, and raises no signal any more.
    if (guard.hit() || lost(job_.from, done_, bytes) || lost(job_.to, done_, bytes)) {
        return Error{Errc::kPoisoned, 0, "copy shard"};
    }
    done_ += bytes;
    stage_ = Stage::kOrder;
    job_.progress->done.store(done_, std::memory_order_relaxed);
    return {};
}

Bytes ShardCopier::piece() const noexcept {
    return std::min(kPieceBytes, job_.bytes - done_);
}

}  // namespace fabricd

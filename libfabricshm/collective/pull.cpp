// The direct engine where hosts do not share caches: ranks read each other's buffers in place, and
// each writes its own output only. Lines at the ends of a buffer also hold what lies beside it, so
// a line that two hosts wrote would lose the words of one of them; with one writer there is no such
// line. There are no claims either: an addition that works across hosts does not exist here.
//
// Allreduce: each rank reduces its share into its own output, all meet, each fetches the shares of
// the others, all meet again. Every other kind is one look at the inputs. The last meeting keeps
// the buffers until all have read them.

#include <algorithm>

#include "kernels/copy.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

// How much is done between looks at whether the group broke, as in direct.cpp.
constexpr Bytes kLook = 4 * kMiB;

// Shares that end where lines of the outputs end, so that a result that all ranks share has one
// writer for each line, too. The first output stands for all: others have lines of their own.
Range share_in_lines(const Operation& operation, const AllreduceView& view, int rank) noexcept {
    const Bytes skew = reinterpret_cast<std::uintptr_t>(view.outputs[0]) % kCacheLine;
    const Range whole = share_of(view.bytes + skew, rank, operation.world());
    return {std::max(whole.begin, skew) - skew, std::max(whole.end, skew) - skew};
}

void reduce_share(const Operation& operation, const AllreduceView& view, Range share) noexcept {
    const Visibility& seam = operation.meeting().view();
    std::array<const void*, kWorldMax> sources;
    for (int peer = 0; peer < operation.world(); ++peer) {
        const auto at = static_cast<std::size_t>(peer);
        sources[at] = view.inputs[at] + share.begin;
        if (peer == operation.rank()) {
            seam.use(share.size(), 0);
            continue;
        }
        seam.acquire(TouchPoint::kInputRead, sources[at], share.size(), peer);
    }
    std::byte* output = view.outputs[static_cast<std::size_t>(operation.rank())] + share.begin;
    void* destination = output;
    kernels::ReduceJob job = reduce_job(operation);
    job.sources = sources.data();
    job.destinations = &destination;
    job.destination_count = 1;
    job.count = share.size() / kernels::size_of(job.type);
    kernels::reduce(job);
    seam.publish(TouchPoint::kShare, output, share.size());
}

// A shared result: who wrote to it before must not find those lines in its cache and write them
// back over the shares of others. All agree on this without a word, since all know all places.
Result<void> clean_shared_result(Operation& operation, const AllreduceView& view) {
    int same = 0;
    int pairs = 0;
    for (int a = 0; a < operation.world(); ++a) {
        for (int b = 0; b < a; ++b, ++pairs) {
            same += view.outputs[static_cast<std::size_t>(a)] ==
                            view.outputs[static_cast<std::size_t>(b)]
                        ? 1
                        : 0;
        }
    }
    if (same == 0 || view.bytes == 0) return {};
    if (same != pairs) return Error{Errc::kUnsupported, 0, "output: shared by some ranks only"};
    // Acquired, not published: of lines that this rank did not write nothing must reach the pool.
    operation.meeting().view().acquire(TouchPoint::kResultClean, view.outputs[0], view.bytes);
    return operation.meet();
}

// The bytes of `peer`'s input that this rank needs: a part of it, or all.
Range needed(const Operation& operation, int peer) noexcept {
    const Parts& parts = operation.parts;
    if (!posts_all_parts(operation.call.kind)) return {0, parts.bytes(peer)};
    const Bytes begin = parts.offset(operation.rank());
    return {begin, begin + parts.bytes(operation.rank())};
}

}  // namespace

Result<void> allreduce_pull(Operation& operation, const AllreduceView& view) {
    const int rank = operation.rank();
    std::byte* own = view.outputs[static_cast<std::size_t>(rank)];
    const Range mine = share_in_lines(operation, view, rank);
    for (Bytes from = mine.begin; from < mine.end; from += kLook) {
        FABRIC_TRY_VOID(operation.meeting().check(-1));
        reduce_share(operation, view, {from, std::min(from + kLook, mine.end)});
    }
    FAULT_POINT("pull.reduced");
    FABRIC_TRY_VOID(operation.meet());
    for (int step = 1; step < operation.world(); ++step) {
        const int peer = (rank + step) % operation.world();
        const Range share = share_in_lines(operation, view, peer);
        if (share.size() == 0) continue;
        const std::byte* theirs = view.outputs[static_cast<std::size_t>(peer)] + share.begin;
        operation.meeting().view().acquire(TouchPoint::kShareRead, theirs, share.size(), peer);
        if (theirs != own + share.begin) {
            kernels::copy(own + share.begin, theirs, share.size(), false);
            operation.meeting().view().use(0, share.size());
        }
    }
    return operation.finish();
}

Result<void> run_pull(Operation& operation) {
    if (operation.call.kind == Kind::kAllreduce) {
        const AllreduceView view{operation.inputs, operation.outputs, operation.parts.bytes(0),
                                 false};
        FABRIC_TRY_VOID(clean_shared_result(operation, view));
        return allreduce_pull(operation, view);
    }
    Pointers posted{};
    for (int peer = 0; peer < operation.world(); ++peer) {
        const auto at = static_cast<std::size_t>(peer);
        const Range range = needed(operation, peer);
        posted[at] = operation.inputs[at] + range.begin;
        if (peer == operation.rank() || !needs_post_of(operation, peer)) continue;
        operation.meeting().view().acquire(TouchPoint::kInputRead, posted[at], range.size(), peer);
    }
    // A stride of 0: each pointer is at this rank's part already.
    combine(operation, posted, 0, operation.largest_part, 0);
    operation.meeting().view().use(
        needed(operation, operation.rank()).size(),
        output_bytes(operation.call, operation.rank(), operation.world()));
    FAULT_POINT("pull.combined");
    return operation.finish();
}

}  // namespace fabricshm

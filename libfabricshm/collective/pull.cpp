// The direct engine where hosts do not share caches: ranks read each other's buffers in place, and
// each writes its own output only. Lines at the ends of a buffer also hold what lies next to it, so
// a line that two hosts wrote would lose the words of one of them; with one writer there is no such
// line. There are no claims either: an addition that works across hosts does not exist here.
//
// Allreduce: each rank reduces its share into its own output, a barrier, each fetches the shares of
// the others, another barrier. Every other kind is one pass over the inputs. The last barrier keeps
// the buffers until all have read them.

#include <algorithm>

#include "kernels/copy.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

// Shares that end where lines of the outputs end, so that a result that all ranks share has one
// writer for each line, too. The first output stands for all: others have lines of their own. What
// is reduced is cut between elements: where a line ends inside of one, before it.
Range share_in_lines(const Operation& operation, const AllreduceView& view, int rank) noexcept {
    const Bytes skew = reinterpret_cast<std::uintptr_t>(view.outputs[0]) % kCacheLine;
    const Range whole = share_of(view.bytes + skew, rank, operation.world());
    const bool reduces = operation.call.kind == Kind::kAllreduce;
    const Bytes unit = reduces ? kernels::size_of(operation.call.dtype) : 1;
    const auto cut = [&](Bytes at) { return (std::max(at, skew) - skew) / unit * unit; };
    return {cut(whole.begin), cut(whole.end)};
}

// Whether elements of a shared output lie across lines: two ranks would write to one line.
bool elements_cross_lines(const Operation& operation, const AllreduceView& view) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(view.outputs[0]);
    return view.one_output && address % kernels::size_of(operation.call.dtype) != 0;
}

void reduce_share(const Operation& operation, const AllreduceView& view, Range share) noexcept {
    const Visibility& seam = operation.barrier().view();
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

// Before a shared output is written: a rank that wrote to it before must not find those lines in
// its cache and write them back over the shares of others.
Result<void> clean_shared_output(Operation& operation, Bytes bytes) {
    if (bytes == 0) return {};
    // Acquired, not published: of lines that this rank did not write nothing must reach the pool.
    operation.barrier().view().acquire(TouchPoint::kResultClean, operation.outputs[0], bytes);
    return operation.meet();
}

// Fetches what the others stored into the shared output, or into their own ones.
void fetch_shares(Operation& operation, const AllreduceView& view) {
    const int rank = operation.rank();
    std::byte* own = view.outputs[static_cast<std::size_t>(rank)];
    for (int step = 1; step < operation.world(); ++step) {
        const int peer = (rank + step) % operation.world();
        const Range share = share_in_lines(operation, view, peer);
        if (share.size() == 0) continue;
        const std::byte* theirs = view.outputs[static_cast<std::size_t>(peer)] + share.begin;
        operation.barrier().view().acquire(TouchPoint::kShareRead, theirs, share.size(), peer);
        if (view.one_output) continue;
        kernels::copy(own + share.begin, theirs, share.size(), false);
        operation.barrier().view().use(0, share.size());
    }
}

// Copies the bytes [from, from + bytes) of one part to their place in the shared output.
void copy_to_shared(const Operation& operation, int part, Bytes in_part, Bytes in_all,
                    Bytes bytes) noexcept {
    const Visibility& seam = operation.barrier().view();
    const bool broadcast = operation.call.kind == Kind::kBroadcast;
    const int from = broadcast ? operation.call.root : part;
    const std::byte* source = operation.inputs[static_cast<std::size_t>(from)] + in_part;
    std::byte* to = operation.outputs[0] + in_all;
    if (to == source || bytes == 0) return;  // in place
    if (from != operation.rank()) {
        seam.acquire(TouchPoint::kInputRead, source, bytes, from);
    } else {
        seam.use(bytes, 0);
    }
    kernels::copy(to, source, bytes, false);
}

// In place, the parts of a shared output are written by their own ranks: two of one line would
// overwrite each other.
bool parts_share_lines(const Operation& operation) noexcept {
    for (int rank = 1; operation.call.kind == Kind::kAllGather && rank < operation.world();
         ++rank) {
        const std::byte* part = operation.outputs[0] + operation.parts.offset(rank);
        const bool in_place = operation.inputs[static_cast<std::size_t>(rank)] == part;
        if (in_place && reinterpret_cast<std::uintptr_t>(part) % kCacheLine != 0) return true;
    }
    return false;
}

// Broadcast and all_gather into one output: each rank stores its share of it, in whole lines.
Result<void> pull_into_shared(Operation& operation) {
    const bool broadcast = operation.call.kind == Kind::kBroadcast;
    const Bytes bytes = broadcast ? operation.parts.bytes(0) : operation.parts.total();
    if (parts_share_lines(operation)) {
        return Error{Errc::kUnsupported, 0, "output: shared parts in place that are not aligned"};
    }
    FABRIC_TRY_VOID(clean_shared_output(operation, bytes));
    const AllreduceView view{operation.inputs, operation.outputs, bytes, false, true};
    const Range mine = share_in_lines(operation, view, operation.rank());
    if (broadcast) {
        copy_to_shared(operation, 0, mine.begin, mine.begin, mine.size());
    } else {
        operation.parts.for_range(operation.world(), mine.begin, mine.size(),
                                  [&](int part, Bytes in_part, Bytes in_all, Bytes length) {
                                      copy_to_shared(operation, part, in_part, in_all, length);
                                  });
    }
    std::byte* output = operation.outputs[0] + mine.begin;
    operation.barrier().view().publish(TouchPoint::kShare, output, mine.size());
    FAULT_POINT("pull.shared");
    FABRIC_TRY_VOID(operation.meet());
    fetch_shares(operation, view);
    return operation.finish();
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
    if (elements_cross_lines(operation, view)) {
        return Error{Errc::kUnsupported, 0, "shared output: not at a multiple of its elements"};
    }
    const Range mine = share_in_lines(operation, view, operation.rank());
    for (Bytes from = mine.begin; from < mine.end; from += kBytesPerCheck) {
        FABRIC_TRY_VOID(operation.barrier().check(-1));
        reduce_share(operation, view, {from, std::min(from + kBytesPerCheck, mine.end)});
    }
    FAULT_POINT("pull.reduced");
    FABRIC_TRY_VOID(operation.meet());
    fetch_shares(operation, view);
    return operation.finish();
}

Result<void> run_pull(Operation& operation) {
    if (operation.call.kind == Kind::kAllreduce) {
        const bool shared = operation.call.shares_output();
        const AllreduceView view{operation.inputs, operation.outputs, operation.parts.bytes(0),
                                 false, shared};
        if (shared) FABRIC_TRY_VOID(clean_shared_output(operation, view.bytes));
        return allreduce_pull(operation, view);
    }
    if (operation.call.shares_output()) return pull_into_shared(operation);
    Pointers posted{};
    for (int peer = 0; peer < operation.world(); ++peer) {
        const auto at = static_cast<std::size_t>(peer);
        const Range range = needed(operation, peer);
        posted[at] = operation.inputs[at] + range.begin;
        if (peer == operation.rank() || !needs_post_of(operation, peer)) continue;
        operation.barrier().view().acquire(TouchPoint::kInputRead, posted[at], range.size(), peer);
    }
    // A stride of 0: each pointer is at this rank's part already.
    combine(operation, posted, 0, operation.largest_part, 0);
    operation.barrier().view().use(
        needed(operation, operation.rank()).size(),
        output_bytes(operation.call, operation.rank(), operation.world()));
    FAULT_POINT("pull.combined");
    return operation.finish();
}

}  // namespace fabricshm

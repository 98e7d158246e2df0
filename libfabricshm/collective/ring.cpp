// Ring allreduce, a -> b -> c -> d -> a: each rank reads only the buffer of the rank before it. For
// chains and switches, where a path to every peer costs more than one to the neighbour.
//
// The buffer is cut into one chunk per rank. First the sums travel: in step s rank r adds its own
// bytes of chunk r-s-1 to what the rank before it has there. After world-1 steps rank r holds the
// sum of chunk r+1. Then the results travel: in step s rank r fetches chunk r-s. A chunk's sum is
// built in the order of the ring, starting with its own rank: the same bits on all ranks and in all
// runs, though not those of `direct`. f16 and bf16 round at every step, since the sums are stored.
//
// A rank overwrites a chunk in the second half only when the rank behind it has read what was
// there: the finished chunk has come around through that rank.

#include "kernels/copy.hpp"
#include "kernels/reduce.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

struct Ring {
    Operation& operation;
    const AllreduceView& view;
    int rank;
    int before;  // the rank that this one reads

    Range chunk(int index) const noexcept {
        const int world = operation.world();
        return share_of(view.bytes, (index % world + world) % world, world);
    }

    // Adds this rank's input to the partial sum of the rank before it. kAvg divides at the end
    // only.
    void add(const std::byte* partial, Range range, bool last) const noexcept {
        if (range.size() == 0) return;
        const void* sources[] = {partial + range.begin, input() + range.begin};
        void* destination = output() + range.begin;
        kernels::ReduceJob job = reduce_job(operation);
        if (job.op == kernels::ReduceOp::kAvg && !last) job.op = kernels::ReduceOp::kSum;
        job.sources = sources;
        job.source_count = 2;
        job.destinations = &destination;
        job.destination_count = 1;
        job.count = range.size() / kernels::size_of(job.type);
        kernels::reduce(job);
    }

    const std::byte* input() const noexcept { return view.inputs[static_cast<std::size_t>(rank)]; }
    std::byte* output() const noexcept { return view.outputs[static_cast<std::size_t>(rank)]; }
};

}  // namespace

Result<void> allreduce_ring(Operation& operation, const AllreduceView& view) {
    const int world = operation.world();
    const int rank = operation.rank();
    const Ring ring{operation, view, rank, (rank + world - 1) % world};
    const auto before = static_cast<std::size_t>(ring.before);
    const TimePoint deadline = operation.call.deadline;
    const Visibility& seam = operation.barrier().view();
    std::uint64_t reached = operation.next - 1;  // the arrival, or the copy into the slot

    for (int step = 0; step < world - 1; ++step) {
        FABRIC_TRY_VOID(operation.barrier().wait(ring.before, reached, deadline));
        const std::byte* partial = step == 0 ? view.inputs[before] : view.outputs[before];
        const Range range = ring.chunk(rank - step - 1);
        seam.acquire(step == 0 ? TouchPoint::kRingInputRead : TouchPoint::kRingSumRead,
                     partial + range.begin, range.size(), ring.before);
        seam.use(range.size(), 0);  // its own input; what it stores is published
        ring.add(partial, range, step == world - 2);
        seam.publish(TouchPoint::kRingSum, ring.output() + range.begin, range.size());
        FAULT_POINT("ring.added");
        reached = operation.step();
    }
    for (int step = 0; step < world - 1; ++step) {
        FABRIC_TRY_VOID(operation.barrier().wait(ring.before, reached, deadline));
        const Range range = ring.chunk(rank - step);
        if (range.size() != 0) {
            seam.acquire(TouchPoint::kRingResultRead, view.outputs[before] + range.begin,
                         range.size(), ring.before);
            kernels::copy(ring.output() + range.begin, view.outputs[before] + range.begin,
                          range.size(), false);
            seam.publish(TouchPoint::kRingResult, ring.output() + range.begin, range.size());
        }
        FAULT_POINT("ring.fetched");
        reached = operation.step();
    }
    // The rank behind this one may still be reading the last chunk.
    return operation.finish();
}

Result<void> run_ring(Operation& operation) {
    return allreduce_ring(
        operation, {operation.inputs, operation.outputs, operation.parts.bytes(0), false, false});
}

}  // namespace fabricshm

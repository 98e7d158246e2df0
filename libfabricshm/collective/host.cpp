// Allreduce by the host: rank 0 reads all inputs, reduces them alone, and all others read its
// result. The gather-to-host variant: for hosts that are much faster than their devices, and to
// compare with.

#include "kernels/copy.hpp"
#include "kernels/reduce.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

void reduce_all(const Operation& operation, const AllreduceView& view) noexcept {
    std::array<const void*, kWorldMax> sources;
    for (int rank = 0; rank < operation.world(); ++rank) {
        std::byte* input = view.inputs[static_cast<std::size_t>(rank)];
        sources[static_cast<std::size_t>(rank)] = input;
        // Its own input needs no acquire: no other rank wrote it.
        if (rank == 0) continue;
        operation.barrier().view().acquire(TouchPoint::kHostInputRead, input, view.bytes, rank);
    }
    operation.barrier().view().use(view.bytes, 0);
    void* destination = view.outputs[0];
    kernels::ReduceJob job = reduce_job(operation);
    job.sources = sources.data();
    job.destinations = &destination;
    job.destination_count = 1;
    job.count = view.bytes / kernels::size_of(job.type);
    kernels::reduce(job);
    operation.barrier().view().publish(TouchPoint::kHostResult, view.outputs[0], view.bytes);
}

}  // namespace

Result<void> allreduce_host(Operation& operation, const AllreduceView& view) {
    std::byte* mine = view.outputs[static_cast<std::size_t>(operation.rank())];
    if (operation.rank() == 0 && view.bytes != 0) reduce_all(operation, view);
    FAULT_POINT("host.reduced");
    FABRIC_TRY_VOID(operation.meet());
    if (operation.rank() != 0) {
        operation.barrier().view().acquire(TouchPoint::kHostResultRead, view.outputs[0], view.bytes,
                                           0);
    }
    // Rank 0 has its result already, and with a shared output so have all.
    if (mine != view.outputs[0] && view.bytes != 0) {
        kernels::copy(mine, view.outputs[0], view.bytes, false);
        operation.barrier().view().use(0, view.bytes);
    }
    return operation.finish();
}

Result<void> run_host(Operation& operation) {
    return allreduce_host(
        operation, {operation.inputs, operation.outputs, operation.parts.bytes(0), false, false});
}

}  // namespace fabricshm

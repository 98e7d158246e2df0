// The direct engine: buffers that lie in the arena are read and written in place by all ranks.
// Ranks show where their buffers are and run a barrier; each byte of the result is computed once,
// in one pass over all inputs, and stored straight into every output; a second barrier ends it.
//
// The work is a range of bytes. Either each rank owns a part of it, or ranks claim chunks one after
// the other, so that a rank without a core does not hold up the others.

#include <algorithm>

#include "kernels/copy.hpp"
#include "kernels/scan.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

// Where a range of the result is stored.
struct Targets {
    std::array<void*, kWorldMax> list;
    int count = 0;

    void add(std::byte* place) noexcept { list[static_cast<std::size_t>(count++)] = place; }
    // A copy onto itself is none.
    void remove(const std::byte* place) noexcept {
        for (int i = 0; i < count; ++i) {
            auto& entry = list[static_cast<std::size_t>(i)];
            if (entry == place) entry = list[static_cast<std::size_t>(--count)];
        }
    }
};

// Once where all ranks share one output; else in every rank's, which arrive() found apart.
Targets targets_in(const Pointers& outputs, int count, Bytes shift) noexcept {
    Targets targets;
    for (int i = 0; i < count; ++i) targets.add(outputs[static_cast<std::size_t>(i)] + shift);
    return targets;
}
Targets all_targets(const Operation& operation, Bytes shift) noexcept {
    const int count = operation.call.shares_output() ? 1 : operation.world();
    return targets_in(operation.outputs, count, shift);
}

// Streaming pays once what all ranks touch no longer fits into the cache; where the group has
// measured it, the measurement counts.
bool streams(const Operation& operation, Bytes touched) noexcept {
    if (operation.store_cell >= 0) return operation.past_cache;
    return touched >= operation.group.tuning.streaming_from;
}

// In place everywhere: what is stored to was read just before and goes into the cache, and fetching
// ahead by hand only costs (docs/kernels.md).
bool all_in_place(const Operation& operation, const AllreduceView& view) noexcept {
    const auto world = static_cast<std::size_t>(operation.world());
    return std::equal(view.inputs.begin(), view.inputs.begin() + world, view.outputs.begin());
}

// Measures how to store where the answer depends on where the ranks run. In place there is no
// choice; and with more than the cache holds past it is faster wherever they run, so that trials of
// the other way would only cost.
void choose_outputs(Operation& operation, StorePlace place, Bytes bytes, Bytes touched) noexcept {
    const Bytes cache = operation.group.tuning.streaming_from / 3 * 4;
    if (touched < cache) operation.choose_stores(place, bytes);
}

// What was stored into the places of others; its own rank's is no other's business.
void publish_targets(const Operation& operation, const Targets& targets, Bytes bytes) noexcept {
    const Visibility& view = operation.barrier().view();
    const std::byte* own = operation.call.output;
    const Bytes own_bytes = output_bytes(operation.call, operation.rank(), operation.world());
    for (int i = 0; view.active() && i < targets.count; ++i) {
        const auto* place = static_cast<std::byte*>(targets.list[static_cast<std::size_t>(i)]);
        const bool mine = place >= own && place < own + own_bytes;
        if (mine) view.use(0, bytes);
        if (!mine) view.publish(TouchPoint::kDirectWrite, place, bytes);
    }
}

// Before this rank reads `bytes` of every input, or of all but the last.
void acquire_inputs(const Operation& operation, const void* const* sources, int count,
                    Bytes bytes) noexcept {
    const Visibility& view = operation.barrier().view();
    for (int rank = 0; view.active() && rank < count; ++rank) {
        if (rank != operation.rank()) {
            view.acquire(TouchPoint::kDirectRead, sources[rank], bytes, rank);
        } else {
            view.use(bytes, 0);
        }
    }
}

void reduce_range(const Operation& operation, const Pointers& inputs, Bytes from,
                  const Targets& targets, Bytes bytes, bool streaming) noexcept {
    std::array<const void*, kWorldMax> sources;
    for (int rank = 0; rank < operation.world(); ++rank) {
        sources[static_cast<std::size_t>(rank)] = inputs[static_cast<std::size_t>(rank)] + from;
    }
    acquire_inputs(operation, sources.data(), operation.world(), bytes);
    kernels::ReduceJob job = reduce_job(operation);
    job.sources = sources.data();
    job.destinations = targets.list.data();
    job.destination_count = targets.count;
    job.count = bytes / kernels::size_of(job.type);
    job.streaming = streaming;
    kernels::reduce(job);
    publish_targets(operation, targets, bytes);
}

// Relaxed: only a reason to stop early; a rank that stops reports it with stopped().
bool gave_up(const Operation& operation) noexcept {
    return operation.barrier().header().broken.load(std::memory_order_relaxed) != 0;
}

// Calls work(from, bytes) for the pieces of [0, bytes) that fall to this rank. False when the group
// broke and some of them were left out. Then this rank must not come to the next barrier: the one
// that broke the group may have raised its clock before, and all the others would take the clocks
// for a complete result.
template <typename Work>
[[nodiscard]] bool for_my_share(Operation& operation, Bytes bytes, bool may_claim,
                                const Work& work) {
    GroupState& group = operation.group;
    const Tuning& tuning = group.tuning;
    if (!may_claim || bytes < tuning.claim_from) {
        const Range mine = share_of(bytes, operation.rank(), operation.world());
        for (Bytes from = mine.begin; from < mine.end; from += kBytesPerCheck) {
            if (gave_up(operation)) return false;
            work(from, std::min(kBytesPerCheck, mine.end - from));
        }
        return true;
    }
    const Bytes chunk = std::max(tuning.chunk_bytes / kCacheLine * kCacheLine, kCacheLine);
    const std::uint64_t chunks = (bytes + chunk - 1) / chunk;
    auto& claim = operation.barrier().header().claim;
    while (true) {
        // Relaxed: a claim only decides which rank works; the barriers order the data. The counter
        // is never reset: in every operation each rank fails exactly once, so all know where it
        // stands after.
        const std::uint64_t next = claim.fetch_add(1, std::memory_order_relaxed) - group.claimed;
        if (next >= chunks) break;
        // A broken group never claims again, so leaving early does not upset the count.
        if (gave_up(operation)) return false;
        FAULT_POINT("direct.claimed");
        const Bytes from = next * chunk;
        work(from, std::min(chunk, bytes - from));
    }
    group.claimed += chunks + static_cast<std::uint64_t>(operation.world());
    return true;
}

// Why for_my_share() left something out. The reason is in shared memory: should a peer have wiped
// it out again, this rank still has no result.
Error stopped(const Operation& operation) noexcept {
    const auto reason = operation.barrier().check(-1);
    return reason.ok() ? Error{Errc::kBroken, -1, "collective"} : reason.error();
}

void copy_range(const Operation& operation, const Targets& all, int peer, const std::byte* source,
                Bytes bytes, bool streaming) noexcept {
    Targets targets = all;
    targets.remove(source);
    if (targets.count == 0) return;
    if (peer != operation.rank()) {
        operation.barrier().view().acquire(TouchPoint::kDirectRead, source, bytes, peer);
    } else {
        operation.barrier().view().use(bytes, 0);
    }
    kernels::copy_to_all(targets.list.data(), targets.count, source, bytes, streaming);
    publish_targets(operation, targets, bytes);
}

void reduce_scatter_range(const Operation& operation, Bytes from, Bytes bytes, bool streaming) {
    operation.parts.for_range(
        operation.world(), from, bytes, [&](int part, Bytes in_part, Bytes in_all, Bytes length) {
            Targets targets;
            targets.add(operation.outputs[static_cast<std::size_t>(part)] + in_part);
            reduce_range(operation, operation.inputs, in_all, targets, length, streaming);
        });
}

void all_gather_range(const Operation& operation, Bytes from, Bytes bytes, bool streaming) {
    const bool to_root = operation.call.kind == Kind::kGather;
    operation.parts.for_range(
        operation.world(), from, bytes, [&](int part, Bytes in_part, Bytes in_all, Bytes length) {
            Targets targets;
            const auto root = static_cast<std::size_t>(operation.call.root);
            if (to_root) targets.add(operation.outputs[root] + in_all);
            if (!to_root) targets = all_targets(operation, in_all);
            copy_range(operation, targets, part,
                       operation.inputs[static_cast<std::size_t>(part)] + in_part, length,
                       streaming);
        });
}

void scatter_range(const Operation& operation, Bytes from, Bytes bytes, bool streaming) {
    const auto root = static_cast<std::size_t>(operation.call.root);
    operation.parts.for_range(
        operation.world(), from, bytes, [&](int part, Bytes in_part, Bytes in_all, Bytes length) {
            Targets targets;
            targets.add(operation.outputs[static_cast<std::size_t>(part)] + in_part);
            copy_range(operation, targets, operation.call.root, operation.inputs[root] + in_all,
                       length, streaming);
        });
}

// Of these bytes this rank computes the outputs of all ranks, one running result after the other:
// each input is read once, where ranks that each reduced the inputs below would read half of all
// inputs each. In place a rank's input is read before its output is stored.
void scan_range(const Operation& operation, Bytes from, Bytes bytes, bool streaming) noexcept {
    const int world = operation.world();
    const bool exclusive = operation.call.kind == Kind::kExscan;
    std::array<const void*, kWorldMax> sources;
    for (int rank = 0; rank < world; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        sources[at] = operation.inputs[at] + from;
    }
    const Targets targets = targets_in(operation.outputs, world, from);
    acquire_inputs(operation, sources.data(), exclusive ? world - 1 : world, bytes);
    kernels::ScanJob job;
    job.type = operation.call.dtype;
    job.op = operation.call.op;
    job.sources = sources.data();
    job.destinations = targets.list.data();
    job.source_count = world;
    job.count = bytes / kernels::size_of(job.type);
    job.exclusive = exclusive;
    job.streaming = streaming;
    kernels::scan(job);
    Targets written = targets;
    if (exclusive) written.list[0] = written.list[static_cast<std::size_t>(--written.count)];
    publish_targets(operation, written, bytes);
}

// all_to_all: this rank fetches its part of every input. Not shared out by bytes, since in place
// the parts of a pair of ranks change places; see run_direct().
void fetch_parts(const Operation& operation, bool streaming) {
    const Bytes bytes = operation.parts.bytes(0);
    const auto rank = static_cast<Bytes>(operation.rank());
    for (int step = 0; step < operation.world(); ++step) {
        const auto peer = static_cast<std::size_t>((operation.rank() + step) % operation.world());
        std::byte* to = operation.call.output + bytes * peer;
        const std::byte* from = operation.inputs[peer] + bytes * rank;
        if (to == from) continue;
        if (step != 0) {
            operation.barrier().view().acquire(TouchPoint::kDirectRead, from, bytes,
                                               static_cast<int>(peer));
        }
        kernels::copy(to, from, bytes, streaming);
        operation.barrier().view().use(step == 0 ? bytes : 0, bytes);
    }
}

[[nodiscard]] bool run_share(Operation& operation) {
    const Call& call = operation.call;
    const Parts& parts = operation.parts;
    const auto root = static_cast<std::size_t>(call.root);
    const Bytes one = parts.bytes(0);
    const auto world = static_cast<Bytes>(operation.world());
    const bool parts_stream = streams(operation, parts.total() * (world + 1));
    switch (call.kind) {
        case Kind::kReduce:
            return for_my_share(operation, one, true, [&](Bytes from, Bytes bytes) {
                Targets targets;
                targets.add(operation.outputs[root] + from);
                reduce_range(operation, operation.inputs, from, targets, bytes,
                             streams(operation, one * (world + 1)));
            });
        case Kind::kBroadcast:
            return for_my_share(operation, one, true, [&](Bytes from, Bytes bytes) {
                copy_range(operation, all_targets(operation, from), call.root,
                           operation.inputs[root] + from, bytes,
                           streams(operation, one * (world + 1)));
            });
        case Kind::kScan:
        case Kind::kExscan:
            return for_my_share(operation, one, true, [&](Bytes from, Bytes bytes) {
                scan_range(operation, from, bytes, streams(operation, one * world * 2));
            });
        case Kind::kReduceScatter:
            return for_my_share(operation, parts.total(), true, [&](Bytes from, Bytes bytes) {
                reduce_scatter_range(operation, from, bytes, parts_stream);
            });
        case Kind::kAllGather:
        case Kind::kGather:
            return for_my_share(operation, parts.total(), true, [&](Bytes from, Bytes bytes) {
                all_gather_range(operation, from, bytes, parts_stream);
            });
        case Kind::kScatter:
            return for_my_share(operation, parts.total(), true, [&](Bytes from, Bytes bytes) {
                scatter_range(operation, from, bytes, parts_stream);
            });
        case Kind::kAllToAll:
            fetch_parts(operation, parts_stream);
            return true;
        default:
            return true;
    }
}

}  // namespace

Result<void> allreduce_direct(Operation& operation, const AllreduceView& view) {
    if (!operation.barrier().view().coherent()) return allreduce_pull(operation, view);
    const int world = operation.world();
    const bool in_place = all_in_place(operation, view);
    const int outputs = view.one_output ? 1 : world;
    const Bytes touched = view.bytes * static_cast<Bytes>(world + outputs);
    const auto place = view.one_output ? StorePlace::kSharedOutput : StorePlace::kOutputs;
    if (!in_place) choose_outputs(operation, place, view.bytes, touched);
    const bool streaming = !in_place && streams(operation, touched);
    const auto work = [&](Bytes from, Bytes bytes) {
        reduce_range(operation, view.inputs, from, targets_in(view.outputs, outputs, from), bytes,
                     streaming);
    };
    if (!for_my_share(operation, view.bytes, view.may_claim, work)) return stopped(operation);
    FAULT_POINT("direct.reduced");
    return operation.finish();
}

Result<void> run_direct(Operation& operation) {
    if (!operation.barrier().view().coherent()) return run_pull(operation);
    if (operation.call.kind == Kind::kAllreduce) {
        return allreduce_direct(
            operation, {operation.inputs, operation.outputs, operation.parts.bytes(0), true,
                        operation.call.shares_output()});
    }
    operation.choose_stores(StorePlace::kOutputs, operation.parts.total());
    if (!run_share(operation)) return stopped(operation);
    FAULT_POINT("direct.reduced");
    return operation.finish();
}

}  // namespace fabricshm

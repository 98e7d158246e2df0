// What a rank does with the posts of the others, by kind: the meaning of every collective, once.

#include <algorithm>

#include "kernels/copy.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

// The bytes of a part that lie in [from, from + bytes): pieces are cut for the largest part.
Bytes clipped(Bytes part_bytes, Bytes from, Bytes bytes) noexcept {
    return from >= part_bytes ? 0 : std::min(bytes, part_bytes - from);
}

// In place, a part is where it has to go already.
void copy_unless_same(const Operation& operation, std::byte* to, const std::byte* from,
                      Bytes bytes) noexcept {
    if (to == from || bytes == 0) return;
    kernels::copy(to, from, bytes, operation.output_past_cache(operation.largest_part));
}

// Of the first `count` ranks.
void reduce_posts(const Operation& operation, int count, const Pointers& posted, Bytes shift,
                  std::byte* output, Bytes bytes) noexcept {
    if (bytes == 0) return;
    // An average of one would still be divided; a scan has none.
    if (count == 1 && operation.world() != 1)
        return copy_unless_same(operation, output, posted[0], bytes);
    std::array<const void*, kWorldMax> sources;
    for (int peer = 0; peer < count; ++peer) {
        sources[static_cast<std::size_t>(peer)] = posted[static_cast<std::size_t>(peer)] + shift;
    }
    void* destination = output;
    kernels::ReduceJob job = reduce_job(operation);
    job.sources = sources.data();
    job.source_count = count;
    job.destinations = &destination;
    job.destination_count = 1;
    job.count = bytes / kernels::size_of(job.type);
    job.streaming = operation.output_past_cache(operation.largest_part);
    kernels::reduce(job);
}

// Parts follow each other in the output, whatever their sizes.
void gather_posts(const Operation& operation, const Pointers& posted, Bytes from, Bytes bytes) {
    const Parts& parts = operation.parts;
    for (int peer = 0; peer < operation.world(); ++peer) {
        copy_unless_same(operation, operation.call.output + parts.offset(peer) + from,
                         posted[static_cast<std::size_t>(peer)],
                         clipped(parts.bytes(peer), from, bytes));
    }
}

void exchange_posts(const Operation& operation, const Pointers& posted, Bytes from, Bytes bytes,
                    Bytes stride) {
    // This rank's part in each of the posts, which are laid out alike.
    const Bytes mine = stride * static_cast<Bytes>(operation.rank());
    Bytes offset = 0;
    for (int peer = 0; peer < operation.world(); ++peer) {
        const auto at = static_cast<std::size_t>(peer);
        const Bytes element = kernels::size_of(operation.call.dtype);
        const Bytes part = operation.call.recv_counts.empty()
                               ? operation.parts.bytes(peer)
                               : operation.call.recv_counts[at] * element;
        copy_unless_same(operation, operation.call.output + offset + from, posted[at] + mine,
                         clipped(part, from, bytes));
        offset += part;
    }
}

}  // namespace

kernels::ReduceJob reduce_job(const Operation& operation) noexcept {
    kernels::ReduceJob job;
    // Sources are in rank order, so that every rank adds up in the same order and gets the same
    // bits.
    job.type = operation.call.dtype;
    job.op = operation.call.op;
    job.source_count = operation.world();
    job.divisor = operation.world();
    return job;
}

bool needs_post_of(const Operation& operation, int peer) noexcept {
    switch (row_of(operation.call.kind).flow) {
        case Flow::kFromRoot:
            return peer == operation.call.root;
        case Flow::kToRoot:
            return operation.rank() == operation.call.root;
        case Flow::kUp:
            return peer < operation.rank();
        default:
            return true;
    }
}

int sources_of_scan(const Operation& operation, int rank) noexcept {
    return operation.call.kind == Kind::kExscan ? rank : rank + 1;
}

void combine(const Operation& operation, const Pointers& posted, Bytes from, Bytes bytes,
             Bytes stride) {
    const Call& call = operation.call;
    const Parts& parts = operation.parts;
    const int rank = operation.rank();
    const int world = operation.world();
    const bool at_root = rank == call.root;
    const auto root = static_cast<std::size_t>(call.root);
    const Bytes mine = stride * static_cast<Bytes>(rank);
    switch (call.kind) {
        case Kind::kAllreduce:
            return reduce_posts(operation, world, posted, 0, call.output + from,
                                clipped(parts.bytes(0), from, bytes));
        case Kind::kReduce:
            if (!at_root) return;
            return reduce_posts(operation, world, posted, 0, call.output + from,
                                clipped(parts.bytes(0), from, bytes));
        case Kind::kScan:
        case Kind::kExscan:
            if (const int sources = sources_of_scan(operation, rank); sources != 0) {
                reduce_posts(operation, sources, posted, 0, call.output + from,
                             clipped(parts.bytes(0), from, bytes));
            }
            return;
        case Kind::kReduceScatter:
            return reduce_posts(operation, world, posted, mine, call.output + from,
                                clipped(parts.bytes(rank), from, bytes));
        case Kind::kBroadcast:
            return copy_unless_same(operation, call.output + from, posted[root],
                                    clipped(parts.bytes(0), from, bytes));
        case Kind::kScatter:
            return copy_unless_same(operation, call.output + from, posted[root] + mine,
                                    clipped(parts.bytes(rank), from, bytes));
        case Kind::kAllGather:
            return gather_posts(operation, posted, from, bytes);
        case Kind::kGather:
            if (at_root) gather_posts(operation, posted, from, bytes);
            return;
        case Kind::kAllToAll:
            return exchange_posts(operation, posted, from, bytes, stride);
        default:
            return;
    }
}

}  // namespace fabricshm

#include "libfabricshm/collective/post.hpp"

#include <algorithm>

#include "kernels/copy.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

bool posts(const Operation& operation, int peer) noexcept {
    const KindRow& row = row_of(operation.call.kind);
    // What the last rank of a scan has is its own affair.
    if (row.flow == Flow::kUp) return peer != operation.world() - 1;
    if (row.flow == Flow::kFromRoot) return peer == operation.call.root;
    return row.input != Extent::kNone;
}

Bytes post_bytes(const Operation& operation, int peer, Bytes from, Bytes stride) noexcept {
    if (!posts(operation, peer)) return 0;
    if (posts_all_parts(operation.call.kind)) return stride * static_cast<Bytes>(operation.world());
    const Bytes part = operation.parts.bytes(peer);
    return from >= part ? 0 : std::min(stride, part - from);
}

void write_post(const Operation& operation, std::byte* place, Bytes from, Bytes stride) noexcept {
    const Call& call = operation.call;
    const int rank = operation.rank();
    if (!posts_all_parts(call.kind)) {
        const Bytes bytes = post_bytes(operation, rank, from, stride);
        if (bytes != 0) kernels::copy(place, call.input + from, bytes, operation.past_cache);
        return;
    }
    for (int part = 0; part < operation.world(); ++part) {
        const Bytes whole = operation.parts.bytes(part);
        const Bytes bytes = from >= whole ? 0 : std::min(stride, whole - from);
        const std::byte* source = call.input + operation.parts.offset(part) + from;
        std::byte* to = place + stride * static_cast<Bytes>(part);
        if (bytes != 0) kernels::copy(to, source, bytes, operation.past_cache);
    }
}

std::byte* own_post(const Operation& operation, std::byte* posted, Bytes from) noexcept {
    if (posts_all_parts(operation.call.kind) || operation.call.input == nullptr) return posted;
    return const_cast<std::byte*>(operation.call.input) + from;  // only read
}

void acquire_post(const Operation& operation, int peer, const std::byte* posted, Bytes from,
                  Bytes stride) noexcept {
    const bool parts = posts_all_parts(operation.call.kind);
    const Bytes shift = parts ? stride * static_cast<Bytes>(operation.rank()) : 0;
    const Bytes bytes = parts ? stride : post_bytes(operation, peer, from, stride);
    operation.barrier().view().acquire(TouchPoint::kSlotRead, posted + shift, bytes, peer);
}

}  // namespace fabricshm

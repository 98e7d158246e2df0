#include "libfabricshm/collective/call.hpp"

#include <algorithm>

namespace fabricshm {

namespace {

// Cannot wrap: check_counts() limits each count, and the world is small.
std::uint64_t sum_of(const std::vector<std::uint64_t>& counts) noexcept {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : counts) sum += count;
    return sum;
}

// Elements of part `rank`, and of all parts.
std::uint64_t part_count(const Call& call, int rank) noexcept {
    return call.counts.empty() ? call.count : call.counts[static_cast<std::size_t>(rank)];
}

std::uint64_t all_count(const Call& call, int world) noexcept {
    return call.counts.empty() ? call.count * static_cast<std::uint64_t>(world)
                               : sum_of(call.counts);
}

bool has_buffer(At at, int root, int rank) noexcept {
    return at == At::kEach || (at == At::kRoot ? rank == root : rank != 0);
}

std::uint64_t elements(const Call& call, Extent extent, int rank, int world) noexcept {
    switch (extent) {
        case Extent::kNone:
            return 0;
        case Extent::kCount:
            return call.count;
        case Extent::kPart:
            return part_count(call, rank);
        case Extent::kAllParts:
            return all_count(call, world);
    }
    return 0;
}

// Of an operation that reduces: whether type and operation go together, and with the kind.
Result<void> check_op(const Call& call) {
    using kernels::ReduceOp;
    if (!row_of(call.kind).reduces) return {};
    if (is_scan(call.kind) && call.op == ReduceOp::kAvg) {
        return Error{Errc::kInvalid, 0, "op: a scan has no average"};
    }
    if (kernels::is_supported(call.dtype, call.op)) return {};
    if (kernels::is_located(call.dtype)) {
        return Error{Errc::kUnsupported, 0, "op: values with an index take minloc and maxloc"};
    }
    if (call.op == ReduceOp::kMinLoc || call.op == ReduceOp::kMaxLoc) {
        return Error{Errc::kUnsupported, 0, "op: minloc and maxloc take values with an index"};
    }
    return Error{Errc::kUnsupported, 0, "op: bit and logical operations take integers"};
}

Result<void> check_counts(const Call& call, int world) {
    const auto size = static_cast<std::size_t>(world);
    if (!call.counts.empty() && !row_of(call.kind).takes_counts) {
        return Error{Errc::kInvalid, 0, "counts: not for this kind"};
    }
    if (!call.counts.empty() && call.counts.size() != size) {
        return Error{Errc::kInvalid, 0, "counts: not one per rank"};
    }
    const bool both = call.counts.empty() == call.recv_counts.empty();
    if (exchanges_parts(call.kind) ? !both : !call.recv_counts.empty()) {
        return Error{Errc::kInvalid, 0, "recv_counts: for all_to_all, together with counts"};
    }
    if (!call.recv_counts.empty() && call.recv_counts.size() != size) {
        return Error{Errc::kInvalid, 0, "recv_counts: not one per rank"};
    }
    // 2^48 elements in all keep every product with an element size and a world size in 64 bits.
    constexpr std::uint64_t kMax = std::uint64_t{1} << 48;
    const auto too_large = [](std::uint64_t count) { return count > kMax; };
    const bool count_stands = call.counts.empty();  // else it is ignored
    if ((count_stands && too_large(call.count)) || std::ranges::any_of(call.counts, too_large) ||
        std::ranges::any_of(call.recv_counts, too_large)) {
        return Error{Errc::kInvalid, 0, "count: above 2^48 elements"};
    }
    return {};
}

// Half-open ranges; empty ones overlap nothing.
bool overlap(const std::byte* a, Bytes a_bytes, const std::byte* b, Bytes b_bytes) noexcept {
    return a_bytes != 0 && b_bytes != 0 && a < b + b_bytes && b < a + a_bytes;
}

// The in-place places that fabricshm.h allows.
bool allowed_in_place(const Call& call, const std::byte* input, const std::byte* output, int rank,
                      int world) noexcept {
    const Bytes element = kernels::size_of(call.dtype);
    const Parts parts = call.counts.empty() ? Parts::equal(call.count * element, world)
                                            : Parts::of(call.counts, element);
    const KindRow& row = row_of(call.kind);
    if (exchanges_parts(call.kind)) return input == output && call.counts.empty();
    // The smaller buffer is the rank's own part of the larger one.
    if (row.output == Extent::kAllParts) return input == output + parts.offset(rank);
    if (row.input == Extent::kAllParts) return output == input + parts.offset(rank);
    return input == output;
}

// A shared output is one result that all ranks get, stored straight into it by the ranks together.
Result<void> check_flags(const Call& call) {
    if ((call.flags & ~kKnownFlags) != 0) return Error{Errc::kInvalid, 0, "flags: unknown"};
    if (!call.shares_output()) return {};
    if (!gives_one_result(call.kind)) {
        return Error{Errc::kInvalid, 0,
                     "flags: a shared output is for allreduce, broadcast and all_gather"};
    }
    if (call.algorithm != Algorithm::kAuto && call.algorithm != Algorithm::kDirect) {
        return Error{Errc::kUnsupported, 0, "algorithm: a shared output takes auto or direct"};
    }
    return {};
}

}  // namespace

Result<void> check_buffers(const Call& call, const std::byte* input, const std::byte* output,
                           int rank, int world) {
    const Bytes in = input_bytes(call, rank, world);
    const Bytes out = output_bytes(call, rank, world);
    if (in != 0 && input == nullptr) return Error{Errc::kInvalid, 0, "input: null"};
    if (out != 0 && output == nullptr) return Error{Errc::kInvalid, 0, "output: null"};
    if (overlap(input, in, output, out) && !allowed_in_place(call, input, output, rank, world)) {
        return Error{Errc::kInvalid, 0, "output: overlaps the input"};
    }
    return {};
}

bool is_like(const Call& a, const Call& b) noexcept {
    return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.algorithm == b.algorithm &&
           a.trigger == b.trigger && a.flags == b.flags && a.root == b.root && a.count == b.count &&
           b.counts.empty() && b.recv_counts.empty();
}

Parts Parts::equal(Bytes bytes, int world) noexcept {
    Parts parts;
    parts.each_ = bytes;
    parts.largest_ = bytes;
    parts.total_ = bytes * static_cast<Bytes>(world);
    return parts;
}

Parts Parts::of(const std::vector<std::uint64_t>& counts, Bytes element) {
    Parts parts;
    parts.offsets_.reserve(counts.size() + 1);
    parts.offsets_.push_back(0);
    for (const std::uint64_t count : counts) {
        parts.offsets_.push_back(parts.offsets_.back() + count * element);
        parts.largest_ = std::max(parts.largest_, count * element);
    }
    parts.total_ = parts.offsets_.back();
    return parts;
}

Parts parts_of(const Call& call, int world) {
    const Bytes element = kernels::size_of(call.dtype);
    const KindRow& row = row_of(call.kind);
    const bool moves = row.input != Extent::kNone || row.output != Extent::kNone;
    if (!moves) return Parts::equal(0, world);
    return call.counts.empty() ? Parts::equal(call.count * element, world)
                               : Parts::of(call.counts, element);
}

Result<void> check_call(const Call& call, int rank, int world) {
    if (static_cast<int>(call.kind) >= kKindCount) {
        return Error{Errc::kInvalid, 0, "kind: unknown"};
    }
    if (static_cast<int>(call.dtype) >= kernels::kDTypeCount) {
        return Error{Errc::kInvalid, 0, "dtype: unknown"};
    }
    if (static_cast<int>(call.op) >= kernels::kReduceOpCount) {
        return Error{Errc::kInvalid, 0, "op: unknown"};
    }
    if (static_cast<int>(call.algorithm) > static_cast<int>(Algorithm::kHost)) {
        return Error{Errc::kInvalid, 0, "algorithm: unknown"};
    }
    if (static_cast<int>(call.trigger) > static_cast<int>(Trigger::kSync)) {
        return Error{Errc::kInvalid, 0, "trigger: unknown"};
    }
    if (has_root(call.kind) && (call.root < 0 || call.root >= world)) {
        return Error{Errc::kInvalid, 0, "root: not a rank"};
    }
    // A message to oneself would wait for a receive that this very call holds up.
    const bool peer_is_rank = call.peer >= 0 && call.peer < world && call.peer != rank;
    const bool any = call.kind == Kind::kRecv && call.peer == kAnyPeer;
    if (is_message(call.kind) && !peer_is_rank && !any) {
        return Error{Errc::kInvalid, 0, "peer: not another rank"};
    }
    FABRIC_TRY_VOID(check_op(call));
    // Both are ways to reduce for all.
    const bool allreduce_only =
        call.algorithm == Algorithm::kRing || call.algorithm == Algorithm::kHost;
    if (allreduce_only && call.kind != Kind::kAllreduce) {
        return Error{Errc::kUnsupported, 0, "algorithm: ring and host are for allreduce"};
    }
    FABRIC_TRY_VOID(check_flags(call));
    FABRIC_TRY_VOID(check_counts(call, world));
    return check_buffers(call, call.input, call.output, rank, world);
}

Bytes input_bytes(const Call& call, int rank, int world) noexcept {
    const KindRow& row = row_of(call.kind);
    if (!has_buffer(row.input_at, call.root, rank)) return 0;
    return elements(call, row.input, rank, world) * kernels::size_of(call.dtype);
}

Bytes output_bytes(const Call& call, int rank, int world) noexcept {
    const KindRow& row = row_of(call.kind);
    if (!has_buffer(row.output_at, call.root, rank)) return 0;
    const Bytes element = kernels::size_of(call.dtype);
    if (!call.recv_counts.empty()) return sum_of(call.recv_counts) * element;
    return elements(call, row.output, rank, world) * element;
}

std::uint64_t signature_of(const Call& call) noexcept {
    std::uint64_t mixed = 0x9e3779b97f4a7c15;
    // Multiply and rotate: good enough to distinguish two honest calls, and a few cycles long.
    const auto mix = [&mixed](std::uint64_t word) {
        mixed = (mixed ^ word) * 0xff51afd7ed558ccd;
        mixed = (mixed << 29) | (mixed >> 35);
    };
    const auto byte = [](auto value) { return static_cast<std::uint64_t>(value) & 0xff; };
    const bool rooted = has_root(call.kind);
    // A byte each, so that two that differ never cancel out (a root is below kWorldMax, which is
    // 256). Only compared: nothing takes the word apart.
    mix(byte(call.kind) | byte(call.dtype) << 8 |
        byte(row_of(call.kind).reduces ? call.op : kernels::ReduceOp{}) << 16 |
        byte(call.algorithm) << 24 | byte(call.trigger) << 32 |
        (rooted ? byte(call.root) : 0) << 40 | byte(call.flags) << 48);
    // Their number stands for them when they are one's own: that there are counts has to be agreed
    // on.
    mix(call.counts.empty() ? call.count : call.has_own_counts() ? 1 : call.counts.size());
    if (!call.has_own_counts()) {
        for (const std::uint64_t count : call.counts) mix(count);
    }
    if (call.step_of != 0) mix(call.step_of);
    return mixed;
}

}  // namespace fabricshm

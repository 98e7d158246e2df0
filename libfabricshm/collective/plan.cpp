#include "libfabricshm/collective/plan.hpp"

#include <algorithm>

#include "libfabricshm/shm/group_block.hpp"

namespace fabricshm {

namespace {

// Ring and host are written for allreduce; for other kinds a forced one falls back to the table.
Algorithm applicable(const PlanInput& input) noexcept {
    const bool allreduce_only =
        input.algorithm == Algorithm::kRing || input.algorithm == Algorithm::kHost;
    return allreduce_only && input.kind != Kind::kAllreduce ? Algorithm::kAuto : input.algorithm;
}

bool has_tree(const PlanInput& input, const Tuning& tuning) noexcept {
    return input.world > 1 && static_cast<std::uint64_t>(input.world) >= tuning.tree_world;
}

// Rank 0 gets the values of all ranks, and they all get a result; in a scan all the values, of
// which each reduces its own ones.
bool fits_tree(const PlanInput& input, const Tuning& tuning) noexcept {
    const auto world = static_cast<Bytes>(input.world);
    const Bytes all = input.part_bytes * world;
    const bool goes_up = input.part_bytes <= tree_bytes_for(input.world) && all <= tuning.max_tree;
    switch (input.kind) {
        case Kind::kBarrier:
            return true;
        case Kind::kAllreduce:
            return goes_up;
        case Kind::kAllGather:
        case Kind::kScan:
        case Kind::kExscan:
            return goes_up && all <= kTreeDownBytes;
        default:
            return false;
    }
}

}  // namespace

Route choose_route(const PlanInput& input, const Tuning& tuning) noexcept {
    const Algorithm algorithm = applicable(input);
    const bool small_enough = algorithm == Algorithm::kAuto || algorithm == Algorithm::kFlat;
    // With trigger `sync` rank 0 has to see all ready first, whatever the size.
    if (input.trigger == Trigger::kSync && input.kind != Kind::kBarrier) return Route::kArrive;
    // Sizes differ by rank, so no size can choose.
    if (input.own_counts) return Route::kArrive;
    // Only the arrival and the barrier at the end of direct keep late stores out of the one output.
    if (input.shared_output) return Route::kArrive;
    if (!small_enough) return Route::kArrive;
    if (has_tree(input, tuning) && algorithm == Algorithm::kAuto) {
        if (fits_tree(input, tuning)) return Route::kTree;
        // Every rank would read the posts of all others, or of half of them.
        if (input.kind == Kind::kAllreduce || is_scan(input.kind)) return Route::kArrive;
    }
    if (input.total_bytes <= kTinyBytes) return Route::kTiny;
    if (algorithm == Algorithm::kFlat) return Route::kSlots;
    const Bytes most = !all_hear_all(input.kind) ? tuning.max_ahead : tuning.max_flat;
    if (input.total_bytes <= most) return Route::kTiny;
    return Route::kArrive;
}

Algorithm choose_arrived(const PlanInput& input, bool all_in_arena, const Tuning& tuning) noexcept {
    if (input.shared_output) return Algorithm::kDirect;
    const Algorithm algorithm = applicable(input);
    if (algorithm == Algorithm::kRing || algorithm == Algorithm::kHost) return algorithm;
    if (algorithm == Algorithm::kFlat || input.own_counts) return Algorithm::kFlat;
    const bool direct = all_in_arena && row_of(input.kind).direct;
    if (direct && algorithm != Algorithm::kStaged) return Algorithm::kDirect;
    // Only allreduce can be staged.
    if (input.kind != Kind::kAllreduce) return Algorithm::kFlat;
    if (algorithm == Algorithm::kStaged) return Algorithm::kStaged;
    // With a tree a barrier costs little compared with the posts of all ranks, which are saved.
    const Bytes saved = has_tree(input, tuning) ? input.part_bytes * static_cast<Bytes>(input.world)
                                                : input.part_bytes;
    const bool shares_work = saved >= tuning.two_phase_from &&
                             static_cast<std::uint64_t>(input.world) >= tuning.two_phase_world;
    return shares_work ? Algorithm::kStaged : Algorithm::kFlat;
}

Pieces cut_pieces(Bytes part_bytes, int sub_parts, Bytes slot_bytes, Bytes piece_bytes) noexcept {
    const Bytes room = std::min(slot_bytes, piece_bytes) / static_cast<Bytes>(sub_parts);
    Pieces pieces;
    pieces.stride = std::max<Bytes>(room / kCacheLine * kCacheLine, kCacheLine);
    // One even of no bytes: the ranks run the barrier all the same.
    pieces.count = std::max<std::uint64_t>((part_bytes + pieces.stride - 1) / pieces.stride, 1);
    return pieces;
}

Pieces cut_staged(Bytes bytes, Bytes slot_bytes, Bytes piece_bytes) noexcept {
    // Twice a piece: lines that have left a core's own cache for the shared one by the time that
    // a peer reads them come faster. docs/collectives.md.
    const Bytes most = std::min(slot_bytes / kStagedPerSlot, 2 * piece_bytes);
    Pieces chunks = cut_pieces(bytes, 1, most, most);
    const Bytes even = (bytes + chunks.count - 1) / chunks.count;
    chunks.stride = std::clamp(round_up(even, kCacheLine), kCacheLine, chunks.stride);
    return chunks;
}

Range share_of(Bytes bytes, int rank, int world) noexcept {
    // By lines, so that no two ranks store into the same one.
    const Bytes lines = (bytes + kCacheLine - 1) / kCacheLine;
    const auto ranks = static_cast<Bytes>(world);
    const auto before = [&](Bytes r) { return std::min(bytes, lines * r / ranks * kCacheLine); };
    const auto r = static_cast<Bytes>(rank);
    return {before(r), before(r + 1)};
}

}  // namespace fabricshm

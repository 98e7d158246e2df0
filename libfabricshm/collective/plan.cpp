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

}  // namespace

bool posts_all_parts(Kind kind) noexcept {
    return kind == Kind::kScatter || kind == Kind::kReduceScatter || kind == Kind::kAllToAll;
}

Route choose_route(const PlanInput& input, const Tuning& tuning) noexcept {
    const Algorithm algorithm = applicable(input);
    const bool small_enough = algorithm == Algorithm::kAuto || algorithm == Algorithm::kFlat;
    // With trigger `sync` rank 0 has to see all ready first, whatever the size.
    if (input.trigger == Trigger::kSync && input.kind != Kind::kBarrier) return Route::kArrive;
    // Sizes differ by rank, so no size can choose.
    if (input.own_counts) return Route::kArrive;
    if (!small_enough) return Route::kArrive;
    if (input.total_bytes <= kTinyBytes) return Route::kTiny;
    const bool runs_ahead = has_root(input.kind) && input.total_bytes <= tuning.ahead_most;
    if (runs_ahead && algorithm == Algorithm::kAuto) return Route::kTiny;
    if (algorithm == Algorithm::kFlat) return Route::kSlots;
    return input.total_bytes <= tuning.flat_most ? Route::kSlots : Route::kArrive;
}

Algorithm choose_arrived(const PlanInput& input, bool all_in_arena, const Tuning& tuning) noexcept {
    const Algorithm algorithm = applicable(input);
    if (algorithm == Algorithm::kRing || algorithm == Algorithm::kHost) return algorithm;
    if (algorithm == Algorithm::kFlat || input.own_counts) return Algorithm::kFlat;
    if (all_in_arena && algorithm != Algorithm::kStaged) return Algorithm::kDirect;
    // Only allreduce can be staged.
    if (input.kind != Kind::kAllreduce) return Algorithm::kFlat;
    if (algorithm == Algorithm::kStaged) return Algorithm::kStaged;
    const bool shares_work = input.part_bytes >= tuning.two_phase_from &&
                             static_cast<std::uint64_t>(input.world) >= tuning.two_phase_world;
    return shares_work ? Algorithm::kStaged : Algorithm::kFlat;
}

Pieces cut_pieces(Bytes part_bytes, int sub_parts, Bytes slot_bytes, Bytes piece_bytes) noexcept {
    const Bytes room = std::min(slot_bytes, piece_bytes) / static_cast<Bytes>(sub_parts);
    Pieces pieces;
    pieces.stride = std::max<Bytes>(room / kCacheLine * kCacheLine, kCacheLine);
    // One even of no bytes: ranks meet all the same.
    pieces.count = std::max<std::uint64_t>((part_bytes + pieces.stride - 1) / pieces.stride, 1);
    return pieces;
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

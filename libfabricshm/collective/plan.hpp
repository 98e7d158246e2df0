// Plan: how an operation will be run, as a pure function of what all ranks know alike. The executor
// (engines in flat.cpp, direct.cpp, ...) follows it; the simulator asks the same functions.

#pragma once

#include <cstdint>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/call.hpp"
#include "libfabricshm/collective/tuning.hpp"

namespace fabricshm {

/// How the ranks' bytes are exchanged.
enum class Route : std::uint8_t {
    kTiny,    // in a few cache lines per rank, data and flag together, or data next to them:
              // one barrier, and none for a rank that needs no other's bytes
    kSlots,   // through the ranks' slots, each rank reads what it needs: one barrier per piece
    kTree,    // from each rank to rank 0 and back, along the tree of their domains
    kArrive,  // ranks first show where their buffers are, then choose with choose_arrived()
};

/// What every rank of an operation knows before it has heard of any other.
struct PlanInput {
    Kind kind = Kind::kBarrier;
    Algorithm algorithm = Algorithm::kAuto;  // of the call, else Tuning::forced
    Trigger trigger = Trigger::kAsync;
    int world = 1;
    Bytes part_bytes = 0;        // of the largest part
    Bytes total_bytes = 0;       // what one rank posts at most: the part, or all parts
    bool own_counts = false;     // all_to_all with counts: only the rank itself knows its parts
    bool shared_output = false;  // arrives at any size, and takes direct
};

Route choose_route(const PlanInput& input, const Tuning& tuning) noexcept;

/// After the arrival, when it is known whether all buffers are in the arena.
/// kFlat stands for pieces through the slots; never returns kAuto.
Algorithm choose_arrived(const PlanInput& input, bool all_in_arena, const Tuning& tuning) noexcept;

/// How an operation goes through the slots, in pieces.
struct Pieces {
    Bytes stride = 0;         // bytes of a part that one piece carries
    std::uint64_t count = 0;  // at least 1, so that empty operations still synchronize
};

/// `sub_parts` is how many parts share a slot (world for scatter and the like, else 1);
/// `stride` is a multiple of 64 so that no element and no cache line is cut.
Pieces cut_pieces(Bytes part_bytes, int sub_parts, Bytes slot_bytes, Bytes piece_bytes) noexcept;

/// How a staged allreduce is cut (staged.cpp): chunks of about the same size, up to twice a piece,
/// of which a slot takes kStagedPerSlot.
inline constexpr std::uint64_t kStagedPerSlot = 2;
Pieces cut_staged(Bytes bytes, Bytes slot_bytes, Bytes piece_bytes) noexcept;

/// Whether the kind posts one part for each rank (scatter, reduce_scatter, all_to_all).
constexpr bool posts_all_parts(Kind kind) noexcept {
    return row_of(kind).posts_parts;
}

/// The share of `bytes` that belongs to `rank` when `world` ranks divide it: whole cache lines,
/// except for the end.
struct Range {
    Bytes begin = 0;
    Bytes end = 0;
    Bytes size() const noexcept { return end - begin; }
};
Range share_of(Bytes bytes, int rank, int world) noexcept;

}  // namespace fabricshm

// Tuning: the sizes at which a group changes its ways. Measured by `fabricctl tune`, else defaults.

#pragma once

#include <cstdint>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/call.hpp"

namespace fabricshm {

/// Rank 0's values count for the whole group: it writes them into the group block, the others read
/// them there, so that all choose alike whatever file or environment each was started with.
struct Tuning {
    Bytes max_flat = 1 * kKiB;          // up to here through posts, with one barrier (tiny engine)
    Bytes max_ahead = 4 * kKiB;         // likewise with a root, which runs ahead
    Bytes two_phase_from = 32 * kKiB;   // staged allreduce: from here reduce once and share, if
    std::uint64_t two_phase_world = 2;  // ... the group has at least so many ranks
    Bytes piece_bytes = 256 * kKiB;  // through slots; a chunk of a staged operation has twice that
    Bytes claim_from = 16 * kMiB;    // from here ranks claim chunks instead of owning parts
    Bytes chunk_bytes = 256 * kKiB;  // what is claimed at once
    Bytes streaming_from = 24 * kMiB;  // bytes touched by all ranks: from here store past the cache
    std::uint64_t spins = 100;         // pauses between two yields
    std::uint64_t yields = 200;        // yields before sleeping
    std::uint64_t tree_world = 8;      // so many ranks go along a tree, where hosts share caches,
    Bytes max_tree = 16 * kKiB;        // ... with what all ranks together post up to here
    Algorithm forced = Algorithm::kAuto;
    // Every collective arrives first, so that buffers of different ranks that overlap are found at
    // every size, not only where the ranks show each other their buffers anyway.
    bool check_buffers = false;
    // What rank 0's memory is: set where the group is made, and in no file.
    bool coherent = true;
    bool one_kernel = true;

    static constexpr std::uint64_t kNoTree = 1024;  // more ranks than any group has

    bool operator==(const Tuning&) const = default;
};

/// Defaults for `world` ranks on `cpus` processors with a last-level cache of `cache_bytes`.
Tuning default_tuning(int world, int cpus, Bytes cache_bytes) noexcept;

/// The file of `fabricctl tune` for this machine and world size, if there is one, then
/// FABRIC_ALGORITHM and FABRIC_CHECK=buffers. What cannot be read is logged once and left out.
/// `machine`: the one that the arena's daemon emulates, or "". `cpus`: how many processors the
/// ranks have; 0: those of this process.
Tuning load_tuning(int world, const std::string& machine = "", int cpus = 0);

/// The defaults for this machine: its processors and its cache.
Tuning machine_tuning(int world);

/// What load_tuning() reads: $FABRIC_TUNING, else $XDG_CACHE_HOME or ~/.cache, fabricd/tuning.conf,
/// or fabricd/tuning-MACHINE.conf for an emulated machine.
std::string tuning_path(const std::string& machine = "");

/// Lines "world.key = value"; unknown keys and values out of range are kCorrupt.
Result<Tuning> parse_tuning(const std::string& text, int world, const Tuning& base);
std::string format_tuning(const Tuning& tuning, int world);

/// To and from the words of the group block. Unpacking clamps every value into its range: the block
/// is input.
void pack_tuning(const Tuning& tuning, std::uint64_t* words) noexcept;
Tuning unpack_tuning(const std::uint64_t* words) noexcept;

/// "ring" and the like; kInvalid for other words.
Result<Algorithm> parse_algorithm(const std::string& name);
const char* name_of(Algorithm algorithm) noexcept;

}  // namespace fabricshm

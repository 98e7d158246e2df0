// What the launcher of this process said about it: torchrun, OpenMPI, MPICH, PMIx, Slurm.
//
// One table has the names of the variables; its order is that of precedence. docs/hosts.md.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// A process among those that one launcher started. -1: the launcher does not say.
struct Launch {
    std::int32_t rank = -1;
    std::int32_t world = -1;
    std::int32_t local_rank = -1;   // among those of its host
    std::int32_t local_world = -1;  // how many those are
    std::int32_t node = -1;         // which host it is
    std::int32_t nodes = -1;        // how many those are
    std::string_view launcher;      // "torchrun", "openmpi", "mpich", "slurm": a literal

    bool operator==(const Launch&) const = default;
};

/// Variables that may have a number: the first that is set counts.
using VariableNames = std::array<const char*, 3>;

struct LauncherRow {
    const char* launcher;
    VariableNames rank;
    VariableNames world;  // rank and world are there: the set is complete
    VariableNames local_rank;
    VariableNames local_world;
    VariableNames node;
    VariableNames nodes;
    /// Ranks of each host in turn, as "2(x3),1". The first says them of exactly these ranks; the
    /// second may be about a job with more, and counts only if it adds up to the world.
    std::array<const char*, 2> ranks_of_nodes;
    const char*
        needs;  // without this one, rank and world are not about this process; nullptr: none
    /// Set by the launcher and by nothing else, so that a rank and a world next to it are not a
    /// leftover of some shell or image; nullptr: its names are used by nothing else.
    const char* mark;
};

/// By precedence: what starts its ranks inside the task of another launcher comes before that.
std::span<const LauncherRow> launcher_table() noexcept;

/// The value of a variable, or nullptr. As getenv(); a test has its own.
using Variables = std::function<const char*(const char* name)>;

/// Reads the first complete set, and what that lacks from others that agree with it. Reads the
/// environment, so not while another thread changes that.
///
/// kNotFound: no launcher has started this process. kInvalid: a variable is no number or out of its
/// range, a set is incomplete and there is no other, or two sets contradict each other; the
/// reason names the variable.
Result<Launch> read_launch(const Variables& variable);
Result<Launch> read_launch();

}  // namespace fabricshm

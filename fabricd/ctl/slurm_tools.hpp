// Slurm's own programs, run for at most so long.

#pragma once

#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// What a program said until it ended.
struct ToolResult {
    int code = 0;  // exit code, or 128 + signal
    std::string output;
    std::string error;

    /// The first line of what it wrote to standard error, without "sbatch: error: ".
    std::string complaint() const;
};

/// Runs `words` with this process's environment; the first is searched in PATH. kNotFound when
/// there is no such program, kTimeout when it has not ended after `limit`: it is killed then. Of
/// its outputs no more than 4 MiB are kept. The reason of an error is a line for the user.
fabricshm::Result<ToolResult> run_slurm_tool(std::vector<std::string> words,
                                             fabricshm::Duration limit);

}  // namespace fabricd

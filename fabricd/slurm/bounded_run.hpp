// Runs a program for at most so long: what a step of a job can wait for.

#pragma once

#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// How it ended by itself.
struct Ended {
    int code = 0;        // exit code, or 128 + signal
    std::string output;  // the beginning of what it wrote to both of its outputs
};

/// Runs `words` (the first is the path) with an environment that has PATH alone, no input, none of
/// this process's other descriptors, and no signal blocked. kTimeout when it had not ended after
/// `timeout`: it and what it started are killed then, and a second later it is given up. kNotFound
/// and the like when it can't be started. Blocks for `timeout` and one second at most. Thread-safe;
/// needs that this process does not ignore SIGCHLD.
fabricshm::Result<Ended> run_bounded(const std::vector<std::string>& words,
                                     fabricshm::Duration timeout);

}  // namespace fabricd

// Processes of the job that a fault is meant for.

#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace emu {

/// Descendants of `ancestor` whose environment, as they were started, has `entry` ("RANK=1"). Reads
/// /proc; a process that ends meanwhile is left out.
std::vector<pid_t> find_processes(pid_t ancestor, const std::string& entry);

/// True when the process is stopped by a signal.
bool is_stopped(pid_t pid);

}  // namespace emu

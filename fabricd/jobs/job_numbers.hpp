// The numbers of a user's jobs: each is given once, also after the folder of its job is removed.
//
//   12/         job 12
//   gone-13/    what is left of job 13: empty once its files are deleted. It stays while there is
//               no larger number, so that the next job is 14.
//
// A folder takes its number, and gives it back to none, by one rename(): a kill at any point leaves
// it as a whole under one of its names.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// So that a name of digits is no overflow, and fits what the command line takes.
constexpr unsigned kMaxJobNumber = 99'999'999;

/// Of a folder's name; nothing: it is no job's.
std::optional<unsigned> job_number_of(const std::string& name);

/// The name of what is left of a removed job.
std::string gone_name(unsigned number);
/// The numbers of those that there are in `jobs`, ascending.
std::vector<unsigned> gone_numbers(const std::string& jobs);

/// The largest number that was ever given in `jobs`; 0: none. Exact under lock_job_numbers():
/// without it a folder that gets another name meanwhile may be missed.
unsigned last_job_number(const std::string& jobs);

/// Keeps others from giving and taking numbers in `jobs`, until the descriptor is closed or the
/// process ends. Waits for 2 s at most, then kBusy. Where the file system has no such locks, there
/// is none, as between jobs of Slurm on NFS.
fabricshm::Result<fabricshm::Fd> lock_job_numbers(const std::string& jobs);

}  // namespace fabricd

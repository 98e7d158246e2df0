// What Slurm and its plugin (fabricd/slurm) ask: the lines of its configuration, and whether a job
// gets its bytes of the pool.

#pragma once

#include <string>
#include <vector>

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Prints gres.conf, the lines of slurm.conf and the line of plugstack.conf for the daemon's pool.
fabricshm::Result<void> print_slurm_config(const CtlOptions& options, AdminClient& client);

/// kNoMemory when the pool has not so much left, kBusy when the daemon drains or another user has
/// the arena's name.
fabricshm::Result<void> admit_slurm_job(const CtlOptions& options, AdminClient& client);

/// Ends the processes that have the job's arena. Fine when there are none, which is the usual case.
fabricshm::Result<void> release_slurm_job(const CtlOptions& options, AdminClient& client);

/// What the configuration is made of.
struct SlurmHost {
    std::string name;  // of the node
    std::uint64_t pool_bytes = 0;
    std::string attach_socket;  // of the daemon
    std::string fabricctl;      // its path
    std::string plugin;         // likewise
};

/// The files for that host: each with its name and its lines. kInvalid for a pool of less than one
/// unit.
struct SlurmFile {
    std::string name;
    std::string text;
};
fabricshm::Result<std::vector<SlurmFile>> slurm_files(const SlurmHost& host);

/// Whether `job` gets `bytes`. An arena of a job of Slurm counts with what it may become, for that
/// is what its job was admitted with; any other with what it has taken.
fabricshm::Result<void> admit(const SlurmOrder& order, const StatusView& status,
                              const std::vector<ArenaView>& arenas);

}  // namespace fabricd

// What a rank is started with: the words of its program and its environment. Pure.

#pragma once

#include <string>
#include <vector>

#include "fabricd/jobs/job_plan.hpp"

namespace fabricd {

/// What is the same for all ranks of a job.
struct RankContext {
    unsigned job = 0;  // its number
    std::string run;   // a name for this run, the same for all ranks
    std::string master_address = "127.0.0.1";
    unsigned master_port = 0;     // of this attempt
    unsigned attempt = 0;         // of the whole job
    std::string attach_socket;    // "": none
    std::string arena;            // its name, when there is a socket
    std::string python_packages;  // for PYTHONPATH; "": none
    std::string interpreter;      // the path found for JobSpec::interpreter
    unsigned cores = 1;
};

/// "python3 -m fabricshm._run_script SCRIPT ...", as fabricrun starts it; or the program itself.
std::vector<std::string> rank_arguments(const JobSpec& spec, const RankContext& context);

/// `base` (NAME=VALUE) with the variables of torchrun, of the fabric and of the job; those of base
/// under the same names are replaced.
std::vector<std::string> rank_environment(const JobSpec& spec, const std::vector<JobNode>& nodes,
                                          const JobPlan& plan, unsigned rank,
                                          const RankContext& context,
                                          const std::vector<std::string>& base);

}  // namespace fabricd

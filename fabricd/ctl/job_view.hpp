// What would run where, for people and for programs.

#pragma once

#include <string>
#include <vector>

#include "fabricd/jobs/job_plan.hpp"

namespace fabricd {

/// A few lines and a row for each rank.
std::string plan_text(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan);

/// The same as one line of JSON.
std::string plan_json(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan);

}  // namespace fabricd

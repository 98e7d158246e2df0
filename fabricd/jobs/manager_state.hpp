// What a task manager keeps in its job's folder, for another one that goes on after a kill.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fabricd/jobs/job_folder.hpp"
#include "fabricd/jobs/job_plan.hpp"
#include "jobs.pb.h"

namespace fabricd {

/// Replaces the file as a whole: a reader sees the one before or this one. Best effort: a full disk
/// costs the chance to go on, not the job.
void save_state(const std::string& path, const jobs::v1::ManagerState& state) noexcept;
/// The end of a job that was ending when its task manager was killed; nothing: none was decided.
std::optional<JobEdge> decided_end(const JobFolder& folder);
/// Nothing when it is missing or no state.
std::optional<jobs::v1::ManagerState> load_state(const std::string& path);

void put_plan(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan,
              jobs::v1::ManagerState& state);
/// Writes what put_plan() wrote; `spec` is that of the job's file. False, and nothing is to be
/// used, when it does not fit together.
bool take_plan(const jobs::v1::ManagerState& state, JobSpec& spec, std::vector<JobNode>& nodes,
               JobPlan& plan);

}  // namespace fabricd

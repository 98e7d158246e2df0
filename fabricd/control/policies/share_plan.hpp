// Share plan: what the proposals about a job have in common: what shares are, what they promise,
// and how a decision says so. For job_policy and slow_ranks.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/policies/guards.hpp"
#include "fabricd/control/policies/state.hpp"

namespace fabricd {

/// Of large jobs only the first ranks are explained: the journal is for reading.
inline constexpr std::size_t kExplainedRanks = 64;

/// How long an action has to pay for itself, in seconds.
double horizon_s(const ControlConfig& config);

/// One line for people; `format` takes two doubles.
std::string reason_text(const char* format, double first, double second);

/// About this job, with its objective of now, and nothing promised beyond it.
Decision decision_on(const JobState& job);

/// Writes down what is promised and what the guards saw.
void promise(Decision& decision, const Promise& promised, const ControlConfig& config);

/// The facts about one rank, and about the whole job.
void explain_rank(Decision& decision, const RankState& rank);
void explain_job(Decision& decision, const JobState& job);

/// Measured, not decided: what the ranks really did in the last window.
std::vector<double> shares_now(const JobState& job);

/// Every rank that has work has a known speed. One unknown speed makes every share a guess.
bool all_speeds_known(const JobState& job);

/// S113 for the speeds of now; nothing when no rank can work.
std::optional<std::vector<double>> wanted_shares(const JobState& job, const ControlConfig& config);

/// The step is the slowest rank's computing, and what is left of today's step besides that.
Promise promise_of_shares(const JobState& job, const std::vector<double>& before,
                          const std::vector<double>& after);

/// The other way round: the step is as it is with the shares of `after`, and what was before them
/// is computed.
Promise promise_of_return(const JobState& job, const std::vector<double>& before,
                          const std::vector<double>& after);

/// samples/s times 1 - I that the job would have with these shares and that step time.
double objective_of(const JobState& job, const std::vector<double>& shares, double step_s);

/// Completes a decision whose action changes the shares so.
void finish_shares(Decision& decision, const std::vector<double>& before,
                   const std::vector<double>& after, const JobState& job,
                   const ControlConfig& config);

}  // namespace fabricd

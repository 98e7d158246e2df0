#include "fabricd/control/policies/job_actions.hpp"

#include "fabricd/control/policies/job_policy.hpp"
#include "fabricd/control/policies/slow_ranks.hpp"
#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

constexpr JobAction kJobActions[] = {{ActionKind::kDrain, propose_drain},
                                     {ActionKind::kReturn, propose_return},
                                     {ActionKind::kWorkUnits, propose_units},
                                     {ActionKind::kBatchShares, propose_shares},
                                     {ActionKind::kSyncInterval, propose_interval}};

static_assert(
    [] {
        for (const ActionInfo& info : kActions) {
            int rows = 0;
            for (const JobAction& action : kJobActions) rows += action.kind == info.kind ? 1 : 0;
            if (rows != (info.scope == ActionScope::kJob ? 1 : 0)) return false;
        }
        return true;
    }(),
    "each action of a job has one row");

RankState& rank_of(JobState& job, std::int32_t rank) {
    return job.ranks[static_cast<std::size_t>(rank)];
}

void hold(JobState& job, const BatchShares& action, bool) {
    job.shares = action.after;
}

void hold(JobState& job, const WorkUnits& action, bool) {
    job.units.assign(action.after.begin(), action.after.end());
}

void hold(JobState& job, const SyncInterval& action, bool) {
    job.sync_interval = action.after;
}

void hold(JobState& job, const Drain& action, bool is_undo) {
    set_drained(rank_of(job, action.rank), !is_undo);
    job.shares = action.after;
}

void hold(JobState& job, const Return& action, bool is_undo) {
    set_drained(rank_of(job, action.rank), is_undo);
    job.shares = action.after;
}

// A kind of the job's scope without a function of its own above does not compile.
template <typename A>
requires(A::kInfo.scope != ActionScope::kJob) void hold(JobState&, const A&, bool) {
    FABRIC_CHECK(A::kInfo.scope == ActionScope::kJob);
}

}  // namespace

std::span<const JobAction> job_actions() noexcept {
    return kJobActions;
}

void apply(JobState& job, const Action& action, bool is_undo) {
    std::visit([&](const auto& known) { hold(job, known, is_undo); }, action);
}

}  // namespace fabricd

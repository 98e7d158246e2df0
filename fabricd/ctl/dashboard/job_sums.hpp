// JobSums: what the sessions of each job are together, so that a page shows all of them in few
// rows.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/picture.hpp"

namespace fabricd {

/// The sessions of one label and one user: two users may call their jobs alike.
struct JobSum {
    std::string label;
    std::uint32_t uid = 0;
    std::uint64_t sessions = 0;
    std::uint64_t away = 0;  // of them: not connected
    std::uint64_t live = 0;  // that report steps
    std::uint64_t stale = 0;
    std::uint64_t stale_ranks = 0;  // of those: ranks of a group, which others may wait for
    double samples_per_s = 0;       // of the live ones
    double wait_share = 0;          // their mean
    std::uint64_t memory_used_bytes = 0;
    std::uint64_t memory_denied_bytes = 0;
    /// Which of the live ones computes and communicates the longest in a step, and how long: others
    /// wait for it. 0: none is live.
    std::uint64_t slowest_session = 0;
    double slowest_work_s = 0;

    /// Some of its sessions are not as the others are.
    bool needs_attention() const { return away != 0 || (stale_ranks != 0 && live != 0); }
};

struct JobSums {
    std::vector<JobSum> jobs;  // by label, then by user
    JobSum all;                // of all sessions, without a label and a user
};

/// Costs a pass over the sessions of `picture`.
JobSums sums_of(const Picture& picture);

Json json_of(const JobSum& job);
/// Appends the same as text, see RowText.
void append_row(std::string& text, const JobSum& job);

}  // namespace fabricd

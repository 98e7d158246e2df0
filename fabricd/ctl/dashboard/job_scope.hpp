// JobScope: what of a picture is of the jobs that a query asks for. docs/dashboard.md.

#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "fabricd/ctl/dashboard/job_sums.hpp"
#include "fabricd/ctl/dashboard/picture_query.hpp"
#include "fabricd/ctl/picture.hpp"

namespace fabricd {

/// A job is the sessions of one label and user. Of it are the arenas that they have open, the
/// groups in these but for those whose known ranks are all of other jobs, and the shards, waits and
/// paths of these arenas and groups. A query for a text without a user has, besides what is of the
/// jobs whose label has the text, what has it in its own name. Refers to both arguments.
class JobScope {
  public:
    /// Costs a pass over the sessions, arenas and groups of `picture`, or nothing: a query for all.
    JobScope(const Picture& picture, const PictureQuery& query);

    bool has(const JobSum& job) const { return is_job(job.label, job.uid); }
    bool has(const SessionView& session) const { return is_job(session.label, session.uid); }
    bool has(const SessionSample& session) const { return is_job(session.label, session.uid); }
    bool has(const ArenaView& arena) const;
    bool has(const GroupView& group) const;
    bool has(const ShardView& shard) const;
    bool has(const WaitingView& waiting) const;
    bool has(const PathSample& path) const;

  private:
    using Ids = std::unordered_set<std::uint64_t>;

    bool is_all() const { return query_.match.empty() && !query_.user; }
    bool is_job(std::string_view label, std::uint32_t uid) const;
    bool has_text(std::string_view name) const;
    bool is_group(std::uint64_t group_id, std::uint64_t arena_id) const;

    const PictureQuery& query_;
    Ids sessions_;
    Ids arenas_;
    Ids groups_;            // of which a session of the jobs is a rank, or whose name matches
    Ids groups_of_others_;  // of which one of another job is
};

}  // namespace fabricd

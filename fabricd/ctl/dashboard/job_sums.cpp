#include "fabricd/ctl/dashboard/job_sums.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace fabricd {

namespace {

void add(JobSum& sum, const SessionView& session) {
    ++sum.sessions;
    if (!session.connected) ++sum.away;
}

void add(JobSum& sum, const SessionSample& session) {
    sum.memory_used_bytes += session.memory_used;
    sum.memory_denied_bytes += session.memory_denied;
    if (session.stale) {
        ++sum.stale;
        if (session.member) ++sum.stale_ranks;
        return;
    }
    ++sum.live;
    sum.samples_per_s += session.rates.samples_per_s;
    sum.wait_share += session.rates.wait_share;
    // The ranks of a job have steps of one length; that which waits the least holds up the others.
    const double work_s = session.rates.step_s * (1 - session.rates.wait_share);
    if (sum.slowest_session != 0 && work_s <= sum.slowest_work_s) return;
    sum.slowest_session = session.session_id;
    sum.slowest_work_s = work_s;
}

void close(JobSum& sum) {
    if (sum.live != 0) sum.wait_share /= static_cast<double>(sum.live);
}

}  // namespace

JobSums sums_of(const Picture& picture) {
    JobSums sums;
    std::unordered_map<std::string_view, std::size_t> places;  // in sums.jobs
    const auto take = [&](const auto& session) {
        const auto [found, is_new] = places.try_emplace(session.label, sums.jobs.size());
        if (is_new) sums.jobs.push_back({.label = session.label});
        add(sums.jobs[found->second], session);
        add(sums.all, session);
    };
    for (const SessionView& session : picture.sessions) take(session);
    for (const SessionSample& session : picture.telemetry.sessions) take(session);
    for (JobSum& sum : sums.jobs) close(sum);
    close(sums.all);
    std::sort(sums.jobs.begin(), sums.jobs.end(),
              [](const JobSum& a, const JobSum& b) { return a.label < b.label; });
    return sums;
}

Json json_of(const JobSum& job) {
    const bool known = job.slowest_session != 0;
    return {{"label", job.label},
            {"sessions", job.sessions},
            {"away", job.away},
            {"live", job.live},
            {"stale", job.stale},
            {"stale_ranks", job.stale_ranks},
            {"samples_per_s", job.samples_per_s},
            {"wait_share", job.live != 0 ? Json(job.wait_share) : Json(nullptr)},
            {"memory_used_bytes", job.memory_used_bytes},
            {"memory_denied_bytes", job.memory_denied_bytes},
            {"slowest_session", known ? Json(job.slowest_session) : Json(nullptr)},
            {"slowest_work_s", known ? Json(job.slowest_work_s) : Json(nullptr)}};
}

}  // namespace fabricd

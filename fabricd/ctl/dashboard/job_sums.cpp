#include "fabricd/ctl/dashboard/job_sums.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "fabricd/ctl/row_text.hpp"

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

using JobKey = std::pair<std::string_view, std::uint32_t>;

struct HashOfJob {
    std::size_t operator()(const JobKey& job) const {
        return std::hash<std::string_view>()(job.first) ^ std::hash<std::uint32_t>()(job.second);
    }
};

void close(JobSum& sum) {
    if (sum.live != 0) sum.wait_share /= static_cast<double>(sum.live);
}

}  // namespace

JobSums sums_of(const Picture& picture) {
    JobSums sums;
    std::unordered_map<JobKey, std::size_t, HashOfJob> places;  // in sums.jobs
    const auto take = [&](const auto& session) {
        const auto [found, is_new] =
            places.try_emplace({session.label, session.uid}, sums.jobs.size());
        if (is_new) sums.jobs.push_back({.label = session.label, .uid = session.uid});
        add(sums.jobs[found->second], session);
        add(sums.all, session);
    };
    for (const SessionView& session : picture.sessions) take(session);
    for (const SessionSample& session : picture.telemetry.sessions) take(session);
    for (JobSum& sum : sums.jobs) close(sum);
    close(sums.all);
    std::sort(sums.jobs.begin(), sums.jobs.end(), [](const JobSum& a, const JobSum& b) {
        return std::tie(a.label, a.uid) < std::tie(b.label, b.uid);
    });
    return sums;
}

namespace {

void put_job(const JobSum& job, auto&& put) {
    put("label", job.label);
    put("uid", job.uid);
    put("sessions", job.sessions);
    put("away", job.away);
    put("live", job.live);
    put("stale", job.stale);
    put("stale_ranks", job.stale_ranks);
    put("samples_per_s", job.samples_per_s);
    constexpr double kNoRate = std::numeric_limits<double>::quiet_NaN();
    put("wait_share", job.live != 0 ? job.wait_share : kNoRate);
    put("memory_used_bytes", job.memory_used_bytes);
    put("memory_denied_bytes", job.memory_denied_bytes);
    const bool known = job.slowest_session != 0;
    put("slowest_session", known ? Json(job.slowest_session) : Json(nullptr));
    put("slowest_work_s", known ? job.slowest_work_s : kNoRate);
}

}  // namespace

Json json_of(const JobSum& job) {
    RowJson row;
    put_job(job, row);
    return row.take();
}

void append_row(std::string& text, const JobSum& job) {
    RowText row(text);
    put_job(job, row);
}

}  // namespace fabricd

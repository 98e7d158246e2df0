#include "fabricd/control/journal/window.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

constexpr double kNano = 1e-9;

double seconds(std::int64_t now, std::int64_t before) {
    return static_cast<double>(now - before) * kNano;
}

double rise(std::uint64_t now, std::uint64_t before) {
    return static_cast<double>(now - before);
}

// A sample is some kilobytes, of which a window takes the first lines: so far apart the processor
// does not fetch them by itself, and waiting for each would be half of a tick of 10,000 sessions.
constexpr std::size_t kFetchAhead = 8;
constexpr std::size_t kFetchBytes =
    offsetof(SessionSample, image) + offsetof(fabricshm::TelemetryImage, shards) + 64;

void fetch(const SessionSample& session) {
    const auto* bytes = reinterpret_cast<const char*>(&session);
    for (std::size_t at = 0; at < kFetchBytes; at += 64) __builtin_prefetch(bytes + at);
}

/// What a page says of now, without anything that needs the window before.
// Also of a rank that made no step: its serial and queue are of now.
RankWindow last_words(const SessionSample& session) {
    RankWindow rank;
    rank.session = session.session_id;
    rank.rank = session.image.rank;
    rank.stale = session.stale;
    rank.loss = session.image.loss;
    rank.gradient_norm = session.image.gradient_norm;
    rank.mean_gradient_norm = session.image.mean_gradient_norm;
    rank.memory_used = static_cast<double>(session.image.memory_used);
    rank.queue = session.image.queue;
    rank.batch = session.image.batch;
    rank.sync_interval = session.image.sync_interval;
    rank.directive_serial = session.image.directive_serial;
    return rank;
}

DeviceFaults faults_on(const Sample& sample, const std::string& device) {
    for (const FaultyDevice& faulty : sample.faulty) {
        if (faulty.name == device) return faulty.faults;
    }
    return 0;
}

/// Jobs in the order of arena and group, their ranks by rank. Two sessions that claim one rank are
/// distinguished by the registry (`member`), so there is one of each.
std::vector<JobWindow> group_by_job(std::vector<std::pair<const SessionSample*, RankWindow>> all) {
    const auto key = [](const auto& entry) {
        const auto& image = entry.first->image;
        return std::tuple(image.arena_id, image.group_id, image.rank);
    };
    const auto less = [&](const auto& a, const auto& b) { return key(a) < key(b); };
    // Ranks open their sessions in any order, but mostly one job after the other.
    if (!std::is_sorted(all.begin(), all.end(), less)) std::sort(all.begin(), all.end(), less);
    std::vector<JobWindow> jobs;
    for (auto& [session, rank] : all) {
        const auto& image = session->image;
        const bool is_new = jobs.empty() || jobs.back().arena != image.arena_id ||
                            jobs.back().group != image.group_id;
        if (is_new) jobs.push_back({image.arena_id, image.group_id, image.world, {}});
        JobWindow& job = jobs.back();
        FABRIC_CHECK(job.ranks.empty() || job.ranks.back().rank <= rank.rank);  // sorted above
        if (!job.ranks.empty() && job.ranks.back().rank == rank.rank) continue;
        job.ranks.push_back(std::move(rank));
    }
    return jobs;
}

}  // namespace

bool JobWindow::is_whole() const noexcept {
    // A window of a journal may say that a job of no ranks has all of them.
    if (ranks.empty() || static_cast<std::int64_t>(ranks.size()) != world) return false;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (ranks[i].rank != static_cast<std::int32_t>(i)) return false;
    }
    return true;
}

WindowMaker::Before WindowMaker::counters_of(const SessionSample& session) {
    const auto& image = session.image;
    Before now{session.session_id, session.page_number, image.arena_id,      image.group_id,
               image.steps,        image.samples,       image.memory_denied, 0,
               image.step_ns,      image.compute_ns,    image.wait_ns,       image.comm_ns};
    now.bytes = image.bytes_to_all;
    return now;
}

Window WindowMaker::next(const Sample& sample) {
    Window window;
    window.number = ++number_;
    window.taken_ns = sample.taken_ns;
    if (taken_ns_ != 0) window.length_s = seconds(sample.taken_ns, taken_ns_);
    taken_ns_ = sample.taken_ns;

    std::vector<Before> fresh;
    fresh.reserve(sample.sessions.size());
    std::vector<std::pair<const SessionSample*, RankWindow>> ranks;
    std::size_t at = 0;
    for (std::size_t i = 0; i < sample.sessions.size(); ++i) {
        if (i + kFetchAhead < sample.sessions.size()) fetch(sample.sessions[i + kFetchAhead]);
        const SessionSample& session = sample.sessions[i];
        // By id, as the sampler has them: both lists are walked once.
        FABRIC_CHECK(i == 0 || sample.sessions[i - 1].session_id < session.session_id);
        const Before now = counters_of(session);
        fresh.push_back(now);
        // A session can claim any group; the registry decides whose figures count.
        if (!session.member || session.image.group_id == 0) continue;
        RankWindow rank = last_words(session);
        rank.faults = faults_on(sample, session.device);
        while (at < before_.size() && before_[at].session < session.session_id) ++at;
        const bool is_known = at < before_.size() && before_[at].session == session.session_id;
        const Before old = is_known ? before_[at] : Before{};
        // Every counter, not only the steps: a page is written by the session, and one number that
        // fell would be a window of minus some hours.
        const bool goes_on = is_known && old.page == now.page && old.group == now.group &&
                             old.arena == now.arena && now.steps >= old.steps &&
                             now.samples >= old.samples && now.step_ns >= old.step_ns &&
                             now.compute_ns >= old.compute_ns && now.wait_ns >= old.wait_ns &&
                             now.comm_ns >= old.comm_ns;
        if (goes_on) {
            rank.steps = rise(now.steps, old.steps);
            rank.samples = rise(now.samples, old.samples);
            rank.step_s = seconds(now.step_ns, old.step_ns);
            rank.compute_s = seconds(now.compute_ns, old.compute_ns);
            rank.wait_s = seconds(now.wait_ns, old.wait_ns);
            rank.comm_s = seconds(now.comm_ns, old.comm_ns);
            rank.bytes = now.bytes >= old.bytes ? rise(now.bytes, old.bytes) : 0;
            rank.memory_denied = now.denied >= old.denied ? rise(now.denied, old.denied) : 0;
        }
        ranks.emplace_back(&session, std::move(rank));
    }
    before_ = std::move(fresh);
    window.jobs = group_by_job(std::move(ranks));
    return window;
}

}  // namespace fabricd

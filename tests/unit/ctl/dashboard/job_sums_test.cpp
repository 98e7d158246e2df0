#include "fabricd/ctl/dashboard/job_sums.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

SessionView session_of(std::uint64_t id, const std::string& label, bool connected = true) {
    SessionView session;
    session.id = id;
    session.label = label;
    session.connected = connected;
    return session;
}

SessionSample live_of(std::uint64_t id, const std::string& label, double step_s, double wait) {
    SessionSample session;
    session.session_id = id;
    session.label = label;
    session.stale = false;
    session.member = true;
    session.memory_used = 100;
    session.memory_denied = 7;
    session.rates.samples_per_s = 10;
    session.rates.step_s = step_s;
    session.rates.wait_share = wait;
    return session;
}

TEST_SUITE("ctl.dashboard.job_sums") {
    TEST_CASE("each session counts once in its job and once in all") {
        Picture picture;
        picture.sessions = {session_of(1, "b"), session_of(2, "a"), session_of(3, "b", false)};
        picture.telemetry.sessions = {live_of(1, "b", 0.1, 0.5), live_of(2, "a", 0.1, 0)};
        const JobSums sums = sums_of(picture);
        REQUIRE(sums.jobs.size() == 2);
        CHECK(sums.jobs[0].label == "a");
        CHECK(sums.jobs[0].sessions == 1);
        CHECK(sums.jobs[1].label == "b");
        CHECK(sums.jobs[1].sessions == 2);
        CHECK(sums.jobs[1].away == 1);
        CHECK(sums.jobs[1].live == 1);
        CHECK(sums.all.sessions == 3);
        CHECK(sums.all.live == 2);
        CHECK(sums.all.samples_per_s == 20);
        CHECK(sums.all.wait_share == doctest::Approx(0.25));
        CHECK(sums.all.memory_used_bytes == 200);
        CHECK(sums.all.memory_denied_bytes == 14);
    }

    TEST_CASE("the slowest is the one that the others wait for") {
        Picture picture;
        picture.telemetry.sessions = {live_of(1, "job", 1.0, 0.6), live_of(2, "job", 1.0, 0.1),
                                      live_of(3, "job", 1.0, 0.5)};
        const JobSums sums = sums_of(picture);
        CHECK(sums.jobs[0].slowest_session == 2);
        CHECK(sums.jobs[0].slowest_work_s == doctest::Approx(0.9));
        CHECK(json_of(sums.jobs[0])["slowest_session"] == 2);
    }

    TEST_CASE("one label of two users is two jobs") {
        Picture picture;
        picture.telemetry.sessions = {live_of(1, "job", 1.0, 0), live_of(2, "job", 1.0, 0),
                                      live_of(3, "job", 1.0, 0)};
        picture.telemetry.sessions[1].uid = 1000;
        picture.sessions.emplace_back();
        picture.sessions.back().label = "job";
        picture.sessions.back().uid = 1000;
        const JobSums sums = sums_of(picture);
        REQUIRE(sums.jobs.size() == 2);
        CHECK(json_of(sums.jobs[0])["uid"] == 0);
        CHECK(sums.jobs[0].live == 2);
        CHECK(json_of(sums.jobs[1])["uid"] == 1000);
        CHECK(sums.jobs[1].live == 1);
        CHECK(sums.jobs[1].sessions == 1);
        CHECK(sums.all.live == 3);
    }

    TEST_CASE("a stale rank next to live ones wants attention, and has no rate") {
        Picture picture;
        picture.telemetry.sessions = {live_of(1, "job", 1.0, 0), live_of(2, "job", 1.0, 0)};
        CHECK_FALSE(sums_of(picture).jobs[0].needs_attention());
        picture.telemetry.sessions[1].stale = true;
        const JobSum job = sums_of(picture).jobs[0];
        CHECK(job.needs_attention());
        CHECK(job.stale == 1);
        CHECK(job.samples_per_s == 10);
        // All of them: it has ended, or pauses.
        picture.telemetry.sessions[0].stale = true;
        CHECK_FALSE(sums_of(picture).jobs[0].needs_attention());
        CHECK(json_of(sums_of(picture).jobs[0])["slowest_session"].is_null());
        CHECK(json_of(sums_of(picture).jobs[0])["wait_share"].is_null());
    }
}

}  // namespace

// What a job is allowed to make the loop believe and do: windows, serials, silence, drained ranks.

#include <doctest/doctest.h>

#include "fabricd/control/loop/loop.hpp"
#include "fabricd/control/loop/replay.hpp"
#include "tests/support/decision_values.hpp"
#include "tests/unit/control/emulated_job.hpp"

using namespace fabricd;
using namespace control_test;

namespace {

ControlConfig acting(const std::string& actions = "shares") {
    ControlConfig config;
    config.mode = "on";
    config.actions = actions;
    return config;
}

long count(const TickResult& all, ActionKind kind) {
    return std::count_if(all.decisions.begin(), all.decisions.end(),
                         [&](const Decision& decision) { return kind_of(decision) == kind; });
}

}  // namespace

TEST_SUITE("control.loop.job_guards") {
    TEST_CASE("a window is what the counters of a page rose by") {
        Sample sample;
        sample.taken_ns = 1'000'000'000;
        SessionSample session{};
        session.session_id = 3;
        session.page_number = 1;
        session.member = true;
        session.stale = false;
        session.image.arena_id = 1;
        session.image.group_id = 2;
        session.image.world = 1;
        session.image.steps = 10;
        session.image.samples = 100;
        session.image.compute_ns = 5'000'000'000;
        sample.sessions = {session};
        WindowMaker maker;
        CHECK(maker.next(sample).jobs[0].ranks[0].steps == 0);
        sample.taken_ns += 500'000'000;
        sample.sessions[0].image.steps = 14;
        sample.sessions[0].image.samples = 140;
        sample.sessions[0].image.compute_ns += 400'000'000;
        const Window window = maker.next(sample);
        CHECK(window.length_s == doctest::Approx(0.5));
        REQUIRE(window.jobs.size() == 1);
        CHECK(window.jobs[0].is_whole());
        CHECK(window.jobs[0].ranks[0].steps == 4);
        CHECK(window.jobs[0].ranks[0].samples == 40);
        CHECK(window.jobs[0].ranks[0].compute_s == doctest::Approx(0.4));
    }

    TEST_CASE("a new page or a counter that fell begins again, and strangers are no members") {
        Sample sample;
        SessionSample session{};
        session.session_id = 3;
        session.page_number = 1;
        session.member = true;
        session.image.group_id = 2;
        session.image.world = 2;
        session.image.steps = 10;
        SessionSample twin = session;  // claims the same rank
        twin.session_id = 4;
        SessionSample stranger = session;
        stranger.session_id = 5;
        stranger.member = false;
        stranger.image.rank = 1;
        sample.sessions = {session, twin, stranger};
        WindowMaker maker;
        maker.next(sample);
        sample.sessions[0].image.steps = 5;
        Window window = maker.next(sample);
        REQUIRE(window.jobs[0].ranks.size() == 1);
        CHECK(window.jobs[0].ranks[0].steps == 0);
        CHECK_FALSE(window.jobs[0].is_whole());
        sample.sessions[0].image.steps = 9;
        sample.sessions[0].page_number = 2;
        CHECK(maker.next(sample).jobs[0].ranks[0].steps == 0);
    }

    TEST_CASE("ranks that do not stand in their places are no whole job, whatever rank 0 says") {
        JobWindow job{1, 7, 3, {}};
        for (const int rank : {0, 2, 5}) {
            job.ranks.emplace_back();
            job.ranks.back().rank = rank;
        }
        CHECK_FALSE(job.is_whole());
        job.ranks[1].rank = 1;
        job.ranks[2].rank = 2;
        CHECK(job.is_whole());
        job.world = -1;
        CHECK_FALSE(job.is_whole());
    }

    TEST_CASE("a job of no ranks, as only a file can say it, is no whole job and decides nothing") {
        CHECK_FALSE(JobWindow{1, 7, 0, {}}.is_whole());
        JournalStory story;
        for (std::uint64_t number = 1; number <= 3; ++number) {
            story.windows.emplace_back();
            story.windows.back().number = number;
            story.windows.back().length_s = 1;
            story.windows.back().jobs = {JobWindow{1, 7, 0, {}}};
        }
        CHECK(replay(story, ControlConfig{}).empty());
    }

    TEST_CASE("a serial that a session makes up corrupts no other job's directives") {
        for (const std::uint64_t lie : {~std::uint64_t{0}, std::uint64_t{1} << 61}) {
            Loop loop(acting());
            EmulatedJob liar({100, 50});
            EmulatedJob honest({100, 50});
            honest.group = 8;
            honest.sessions_from = 50;
            std::vector<Directive> said;
            for (int i = 0; i < 30; ++i) {
                Window window = liar.window();
                window.jobs[0].ranks[1].directive_serial = lie;
                window.jobs.push_back(honest.job());
                for (const Directive& directive : loop.tick(window).directives) {
                    if (directive.group != honest.group) continue;
                    honest.follow(directive);
                    said.push_back(directive);
                }
            }
            REQUIRE(said.size() >= 1);
            CHECK(said[0].serial > 0);
            CHECK(said[0].serial < 100);
            CHECK(honest.samples_per_s > 0.95 * honest.ideal());
        }
    }

    TEST_CASE("a directive's serial is above all that a session was sent in another group") {
        Loop loop(acting());
        EmulatedJob job({100, 100, 50});
        job.serial = 1000;  // of a daemon before this one
        const auto first = run(job, loop, 20).directives.at(0);
        CHECK(first.serial > 1000);
        EmulatedJob rest({100, 50});
        rest.group = 8;
        rest.sessions_from = 1;
        rest.serial = 3;  // it has not read the last one
        CHECK(run(rest, loop, 20).directives.at(0).serial > first.serial);
    }

    TEST_CASE("other sessions in the places of a group are directed, and not those of before") {
        Loop loop(acting());
        EmulatedJob job({100, 100});
        run(job, loop, 10);
        job.sessions_from = 500;
        job.speeds[1] = 25;
        const auto all = run(job, loop, 20);
        REQUIRE(all.directives.size() >= 1);
        CHECK(all.directives[0].sessions == std::vector<std::uint64_t>{600, 601});
    }

    TEST_CASE("a job that loses a rank becomes stale, and its probation ends") {
        Loop loop(acting());
        EmulatedJob job({100, 50});
        while (run(job, loop, 1).decisions.empty()) {
        }
        TickResult all;
        for (int i = 0; i < 30; ++i) {
            Window window = job.window();
            window.jobs[0].ranks.pop_back();
            const auto result = loop.tick(window);
            all.outcomes.insert(all.outcomes.end(), result.outcomes.begin(), result.outcomes.end());
        }
        REQUIRE(all.outcomes.size() == 1);
        CHECK(all.outcomes[0].outcome == Outcome::kUnjudged);
        CHECK(loop.counters().stale_jobs == 1);
    }

    TEST_CASE("a dry run does not say in each window that the loss gets worse") {
        ControlConfig config = acting("sync");
        config.mode = "dry-run";
        Loop loop(config);
        EmulatedJob job({100, 100});
        job.interval = 4;
        job.batch = 10;
        job.sync_s = 0.02;
        int told = 0;
        for (int i = 0; i < 40; ++i) {
            job.loss += 0.2 + 0.1 * (i % 2);
            told += static_cast<int>(job.tick(loop).decisions.size());
        }
        CHECK(told >= 1);
        CHECK(told <= 3);
    }

    TEST_CASE("the interval halves for the loss also where the figures say nothing") {
        Loop loop(acting("sync"));
        EmulatedJob job({100, 100});
        job.interval = 4;
        for (int i = 0; i < 40 && job.interval == 4; ++i) {
            job.loss += 0.2 + 0.1 * (i % 2);
            Window window = job.window();
            // All of the step is communication: nothing is left to set it against.
            for (RankWindow& rank : window.jobs[0].ranks) rank.comm_s = rank.step_s;
            for (const Directive& directive : loop.tick(window).directives) job.follow(directive);
        }
        CHECK(job.interval == 2);
    }

    TEST_CASE("a job that works in units is not given shares") {
        Loop loop(acting("shares,units"));
        EmulatedJob job({100, 50});
        job.units = {1, 1};  // which no other division makes faster
        const auto all = run(job, loop, 40);
        CHECK(count(all, ActionKind::kBatchShares) == 0);
    }

    TEST_CASE("an actuator that fails to take something back is written down, too") {
        Loop loop(acting());
        const DecisionOutcome outcome = loop.failed(77, "no such page");
        CHECK(outcome.id == 77);
        CHECK(outcome.outcome == Outcome::kFailed);
        CHECK(outcome.reason == "no such page");
    }

    TEST_CASE("an action that is undone again and again is tried less and less often") {
        EmulatedJob job({100, 100, 100, 50});
        job.strain = 1.5;
        Loop loop(acting());
        const auto all = run(job, loop, 1000);
        const auto tries = count(all, ActionKind::kBatchShares) / 2;  // and rolled back
        CHECK(tries >= 3);
        CHECK(tries <= 8);  // and not the forty that fit
    }

    TEST_CASE("a rank that stays slow raises one alarm and is drained if that is allowed") {
        for (const bool drains : {false, true}) {
            ControlConfig config = acting();
            config.actions = drains ? "shares,drain" : "shares";
            EmulatedJob job({100, 100, 100, 10});
            Loop loop(config);
            const auto all = run(job, loop, 60);
            const auto is_alarm = [](const Decision& decision) {
                return kind_of(decision) == ActionKind::kAlarm && rank_of(decision) == 3;
            };
            CHECK(std::count_if(all.decisions.begin(), all.decisions.end(), is_alarm) == 1);
            CHECK((job.shares[3] == 0) == drains);
            CHECK(loop.counters().alarmed_ranks == 1);
        }
    }

    TEST_CASE("a drained rank is tried again, and gets its share when it is well") {
        EmulatedJob job({100, 100, 100, 10});
        Loop loop(acting("shares,drain"));
        run(job, loop, 60);
        REQUIRE(job.shares[3] == 0);
        job.speeds[3] = 100;
        const auto all = run(job, loop, 120);
        CHECK(count(all, ActionKind::kReturn) == 1);
        CHECK(job.shares[3] == doctest::Approx(0.25).epsilon(0.1));
        CHECK(loop.counters().alarmed_ranks == 0);
    }

    TEST_CASE("a drained rank that stays slow is tried ever more rarely") {
        EmulatedJob job({100, 100, 100, 10});
        Loop loop(acting("shares,drain"));
        run(job, loop, 60);
        const auto all = run(job, loop, 1500);
        const auto tries = count(all, ActionKind::kReturn);
        CHECK(tries >= 3);  // after 60, 120, 240, 480, 960 windows
        CHECK(tries <= 8);
        CHECK(job.shares[3] == 0);

        ControlConfig never = acting("shares,drain");
        never.drain_retry = 0;
        EmulatedJob other({100, 100, 100, 10});
        Loop patient(never);
        CHECK(count(run(other, patient, 500), ActionKind::kReturn) == 0);
    }

    TEST_CASE("a rank whose device is faulty is reported at once and loses its share") {
        EmulatedJob job({100, 100, 100, 100});
        Loop loop(acting("shares"));  // without drain: that is about slow ranks
        run(job, loop, 10);
        job.faults = {0, 0, DeviceFaults{} | DeviceFault::kEcc, 0};
        const auto first = run(job, loop, 1);
        REQUIRE(first.decisions.size() == 1);
        CHECK(kind_of(first.decisions[0]) == ActionKind::kAlarm);
        CHECK(rank_of(first.decisions[0]) == 2);
        CHECK(first.decisions[0].outcome == Outcome::kDone);
        CHECK(first.decisions[0].reason == "rank 2: its device says ecc");
        CHECK(loop.counters().alarmed_ranks == 1);
        // One look may be wrong: the share goes after the third window.
        CHECK(run(job, loop, 1).decisions.empty());
        const auto then = run(job, loop, 1);
        REQUIRE(then.decisions.size() == 1);
        CHECK(kind_of(then.decisions[0]) == ActionKind::kDrain);
        CHECK(then.decisions[0].outcome == Outcome::kDone);
        CHECK(then.decisions[0].reason == "rank 2 is drained: its device says ecc");
        CHECK(job.shares[2] == 0);
        CHECK(sum(job.shares) == doctest::Approx(1));
        // It is no faster for the others, and that is not for a probation to find out.
        const auto later = run(job, loop, 300);
        CHECK(later.outcomes.empty());
        CHECK(count(later, ActionKind::kDrain) + count(later, ActionKind::kReturn) == 0);
        CHECK(job.shares[2] == 0);
    }

    TEST_CASE("a faulty device waits for no probation, and gets its share back when it is well") {
        EmulatedJob job({100, 100, 100, 25});
        Loop loop(acting("shares"));
        REQUIRE(count(run(job, loop, 4), ActionKind::kBatchShares) == 1);
        job.faults = {DeviceFaults{} | DeviceFault::kXid | DeviceFault::kThermal};
        const auto all = run(job, loop, 4);
        CHECK(count(all, ActionKind::kDrain) == 1);
        REQUIRE(all.outcomes.size() == 1);
        CHECK(all.outcomes[0].outcome == Outcome::kUnjudged);
        CHECK(all.outcomes[0].reason == "a device failed");
        CHECK(job.shares[0] == 0);
        run(job, loop, 100);
        CHECK(job.shares[0] == 0);
        job.faults.clear();
        const auto back = run(job, loop, 60);
        CHECK(count(back, ActionKind::kReturn) == 1);
        CHECK(job.shares[0] == doctest::Approx(100.0 / 325).epsilon(0.1));
        CHECK(loop.counters().alarmed_ranks == 0);
        // The next fault is another alarm.
        job.faults = {DeviceFaults{} | DeviceFault::kXid};
        CHECK(count(run(job, loop, 1), ActionKind::kAlarm) == 1);
    }

    TEST_CASE(
        "faults that the configuration does not name, and those of all ranks, drain no rank") {
        for (const char* drains : {"ecc,stopped", ""}) {
            CAPTURE(drains);
            ControlConfig config = acting("shares,drain");
            config.drain_faults = drains;
            EmulatedJob job({100, 100});
            job.faults = {0, DeviceFaults{} | DeviceFault::kXid | DeviceFault::kThermal};
            Loop loop(config);
            const auto all = run(job, loop, 30);
            CHECK(count(all, ActionKind::kAlarm) == 1);
            CHECK(count(all, ActionKind::kDrain) == 0);
        }
        EmulatedJob job({100, 100});
        job.faults = {1, 1};
        Loop loop(acting("shares"));
        const auto all = run(job, loop, 300);
        CHECK(count(all, ActionKind::kAlarm) == 2);
        CHECK(count(all, ActionKind::kDrain) == 1);
        CHECK(job.shares[0] + job.shares[1] == doctest::Approx(1));
    }

    TEST_CASE(
        "a job that stands still gets the alarm for its faulty device, a dry run only says so") {
        EmulatedJob job({100, 100});
        Loop loop(acting("shares"));
        run(job, loop, 5);
        Window still = job.window();
        for (RankWindow& rank : still.jobs[0].ranks) rank.steps = 0;
        still.jobs[0].ranks[1].faults = DeviceFaults{} | DeviceFault::kStopped;
        const auto told = loop.tick(still);
        REQUIRE(told.decisions.size() == 1);
        CHECK(kind_of(told.decisions[0]) == ActionKind::kAlarm);

        ControlConfig dry = acting("shares");
        dry.mode = "dry-run";
        EmulatedJob other({100, 100});
        other.faults = {0, DeviceFaults{} | DeviceFault::kStopped};
        Loop watching(dry);
        const auto all = run(other, watching, 30);
        CHECK(all.directives.empty());
        CHECK(count(all, ActionKind::kDrain) == 2);  // once in a while
    }
}

#include "fabricd/control/loop/loop.hpp"

#include <doctest/doctest.h>

#include "tests/unit/control/emulated_job.hpp"

using namespace fabricd;
using namespace control_test;

namespace {

ControlConfig acting() {
    ControlConfig config;
    config.mode = "on";
    config.actions = "shares,units,sync,drain,placement,quota";
    return config;
}

int windows_until_ideal(EmulatedJob& job, Loop& loop, double part) {
    for (int i = 1; i <= 100; ++i) {
        job.tick(loop);
        if (job.samples_per_s >= part * job.ideal()) return i;
    }
    return 1000;
}

/// Ticks until a decision of the kind; false when none comes.
bool run_until(EmulatedJob& job, Loop& loop, ActionKind kind) {
    for (int i = 0; i < 50; ++i) {
        for (const Decision& decision : job.tick(loop).decisions) {
            if (kind_of(decision) == kind) return true;
        }
    }
    return false;
}

/// Windows until shares that were just decided are judged, when the first rank is by turns faster
/// and slower for so many windows in the middle of it.
int windows_until_judged(int glitches) {
    ControlConfig config = acting();
    config.probation = 20;
    Loop loop(config);
    EmulatedJob job({100, 50});
    job.noise = 0;
    REQUIRE(run_until(job, loop, ActionKind::kBatchShares));
    for (int i = 1; i < 60; ++i) {
        const int glitch = i - 12;
        const bool is_off = glitch >= 0 && glitch < glitches;
        job.speeds[0] = !is_off ? 100 : glitch % 2 == 0 ? 125 : 80;
        if (!job.tick(loop).outcomes.empty()) return i;
    }
    return 1000;
}

/// Whether shares are rolled back for a rank that they made slower, when the ranks have these
/// speeds from so many windows after the decision on.
bool is_own_doing(const std::vector<double>& first, int after, const std::vector<double>& then) {
    ControlConfig config = acting();
    config.probation = 20;
    Loop loop(config);
    EmulatedJob job(first);
    job.noise = 0;
    REQUIRE(run_until(job, loop, ActionKind::kBatchShares));
    run(job, loop, after);
    job.speeds = then;
    for (const DecisionOutcome& outcome : run(job, loop, 8).outcomes) {
        if (outcome.reason != "a rank became slower with its larger share") continue;
        CHECK(outcome.outcome == Outcome::kUndone);
        return true;
    }
    return false;
}

}  // namespace

TEST_SUITE("control.loop.loop") {
    TEST_CASE("a condition begins above one threshold and ends below another, after some windows") {
        Hysteresis condition;
        const auto update = [&](double value) { return condition.update(value, 0.1, 0.05, 3); };
        CHECK_FALSE((update(0.2) || update(0.2) || update(0.07)));
        CHECK_FALSE((update(0.2) || update(0.2)));
        CHECK(update(0.2));
        CHECK((update(0.07) && update(0.01) && update(0.01) && update(0.07)));
        CHECK((update(0.01) && update(std::nan("")) && update(0.01) && update(0.01)));
        CHECK_FALSE(update(0.01));
    }

    TEST_CASE("an action is worth it if it gains enough and pays for itself within the horizon") {
        CHECK(is_worth_it({1, 0.8, 1}, 0.05, 60));
        CHECK_FALSE(is_worth_it({1, 0.96, 0}, 0.05, 60));
        CHECK_FALSE(is_worth_it({1, 0.8, 13}, 0.05, 60));
        CHECK_FALSE(is_worth_it({1, std::nan(""), 0}, 0.05, 60));
        CHECK_FALSE(is_worth_it({0, 0, 0}, 0.05, 60));
    }

    TEST_CASE("nothing is decided about a job that is balanced but for noise") {
        EmulatedJob job({100, 100, 100, 100});
        job.noise = 0.05;
        Loop loop(acting());
        const auto all = run(job, loop, 300);
        CHECK(all.decisions.empty());
        CHECK(loop.counters().jobs == 1);
    }

    TEST_CASE("after a rank turns slow the shares settle within 5 windows, without a reversal") {
        for (const double slow : {0.8, 0.5, 0.25}) {
            CAPTURE(slow);
            EmulatedJob job({100, 100, 100, 100});
            Loop loop(acting());
            CHECK(run(job, loop, 30).decisions.empty());
            job.speeds[2] *= slow;
            CHECK(windows_until_ideal(job, loop, 0.93) <= 5);
            const auto later = run(job, loop, 60);
            for (const Decision& decision : later.decisions) {
                if (kind_of(decision) != ActionKind::kAlarm) CHECK(decision.undoes == 0);
            }
            CHECK(later.decisions.size() <= 1);
            // The action that did it was kept.
            CHECK(loop.counters().outcomes[int(Outcome::kKept)] >= 1);
            CHECK(loop.counters().outcomes[int(Outcome::kUndone)] == 0);
            CHECK(job.samples_per_s > 0.95 * job.ideal());
            job.speeds[2] = 100;
            CHECK(windows_until_ideal(job, loop, 0.93) <= 5);
        }
    }

    TEST_CASE("uneven ranks reach the sum of their speeds, and a share sums to 1") {
        EmulatedJob job({100, 100, 50, 25});
        job.noise = 0;
        Loop loop(acting());
        const auto all = run(job, loop, 40);
        REQUIRE(all.directives.size() == 1);
        CHECK(sum(all.directives[0].shares) == doctest::Approx(1));
        CHECK(job.shares[3] == doctest::Approx(25.0 / 275).epsilon(0.02));
        CHECK(job.samples_per_s > 0.97 * job.ideal());
        const Decision& decision = all.decisions[0];
        CHECK(decision.gain == doctest::Approx(275.0 / 100 - 1).epsilon(0.05));
        CHECK(decision.facts.size() > 8);
        CHECK(all.outcomes[0].outcome == Outcome::kKept);
    }

    TEST_CASE("a dry run decides and does nothing") {
        ControlConfig config = acting();
        config.mode = "dry-run";
        EmulatedJob job({100, 100, 50, 25});
        Loop loop(config);
        const auto all = run(job, loop, 60);
        CHECK(all.directives.empty());
        REQUIRE(all.decisions.size() >= 2);
        CHECK(all.decisions.size() <= 4);  // it does not repeat itself in each window
        CHECK(all.decisions[0].outcome == Outcome::kNotApplied);
        CHECK(job.shares[3] == 0.25);
    }

    TEST_CASE("an action that makes things worse is rolled back and not tried again for long") {
        EmulatedJob job({100, 100, 100, 50});
        job.strain = 1.5;  // no rank bears more than its even share
        Loop loop(acting());
        const auto all = run(job, loop, 24);
        REQUIRE(all.decisions.size() == 2);
        CHECK(all.decisions[1].undoes == all.decisions[0].id);
        REQUIRE(all.outcomes.size() == 1);
        CHECK(all.outcomes[0].outcome == Outcome::kUndone);
        for (const double share : job.shares) CHECK(share == doctest::Approx(0.25));
        CHECK(loop.counters().outcomes[int(Outcome::kUndone)] == 1);
    }

    TEST_CASE("a job that does not follow is left alone") {
        EmulatedJob job({100, 100, 50, 25});
        job.obeys = false;
        Loop loop(acting());
        const auto all = run(job, loop, 30);
        CHECK(all.decisions.size() == 1);
        REQUIRE(all.outcomes.size() == 1);
        CHECK(all.outcomes[0].outcome == Outcome::kUnjudged);
    }

    TEST_CASE("stale telemetry freezes what depends on it, and a probation ends unjudged") {
        EmulatedJob job({100, 100, 50, 25});
        Loop loop(acting());
        while (run(job, loop, 1).decisions.empty()) {
        }
        TickResult all;
        for (int i = 0; i < 30; ++i) {
            Window window = job.window();
            window.jobs[0].ranks[1].stale = true;
            const auto result = loop.tick(window);
            all.outcomes.insert(all.outcomes.end(), result.outcomes.begin(), result.outcomes.end());
            CHECK(result.decisions.empty());
        }
        REQUIRE(all.outcomes.size() == 1);
        CHECK(all.outcomes[0].outcome == Outcome::kUnjudged);
        CHECK(loop.counters().stale_jobs == 1);
    }

    TEST_CASE("hostile numbers lead to no decision and no NaN") {
        Numbers numbers(9);
        Loop loop(acting());
        EmulatedJob job({100, 100, 50, 25});
        for (int i = 0; i < 3000; ++i) {
            Window window = job.window();
            for (auto& rank : window.jobs[0].ranks) {
                if (numbers.below(3) != 0) continue;
                double* fields[] = {&rank.steps,     &rank.samples, &rank.step_s,
                                    &rank.compute_s, &rank.wait_s,  &rank.comm_s,
                                    &rank.loss,      &rank.bytes,   &rank.gradient_norm};
                *fields[numbers.below(std::size(fields))] = numbers.adversarial();
                rank.queue = static_cast<std::uint32_t>(numbers.below(9));
            }
            for (const Directive& directive : loop.tick(window).directives) {
                CHECK(all_finite(directive.shares));
                if (!directive.shares.empty()) CHECK(sum(directive.shares) == doctest::Approx(1));
                CHECK(all_finite(directive.units));
            }
        }
    }

    TEST_CASE("half of a group is no job") {
        EmulatedJob job({100, 10});
        Loop loop(acting());
        for (int i = 0; i < 30; ++i) {
            Window window = job.window();
            window.jobs[0].ranks.pop_back();
            CHECK(loop.tick(window).decisions.empty());
        }
        CHECK(loop.counters().jobs == 0);
    }

    TEST_CASE("a shrunk group goes on with what is known of its sessions") {
        EmulatedJob job({100, 100, 100, 50});
        Loop loop(acting());
        run(job, loop, 40);
        EmulatedJob rest({100, 100, 50});
        rest.group = 8;
        rest.sessions_from = 1;
        CHECK(windows_until_ideal(rest, loop, 0.93) <= 5);
    }

    TEST_CASE("work units move for jobs that have a queue, as whole numbers") {
        EmulatedJob job({100, 100, 50, 25});
        job.units = {11, 11, 11, 11};
        Loop loop(acting());
        const auto all = run(job, loop, 20);
        REQUIRE(all.decisions.size() >= 1);
        CHECK(kind_of(all.decisions[0]) == ActionKind::kWorkUnits);
        CHECK(sum(job.units) == 44);
        CHECK(job.samples_per_s > 0.9 * job.ideal());
    }

    TEST_CASE(
        "the sync interval follows what a synchronisation costs, and halves while the loss "
        "gets worse") {
        EmulatedJob job({100, 100});
        job.batch = 10;
        job.sync_s = 0.02;  // 0.4 steps
        Loop loop(acting());
        run(job, loop, 30);
        CHECK(job.interval == 4);
        run(job, loop, 30);
        CHECK(job.interval == 4);
        int windows = 0;
        for (; windows < 40 && job.interval == 4; ++windows) {
            job.loss += 0.2;
            job.tick(loop);
        }
        CHECK(job.interval < 4);
        CHECK(windows < 20);
    }

    TEST_CASE("without sync among the actions the interval stays") {
        ControlConfig config = acting();
        config.actions = "shares";
        EmulatedJob job({100, 100});
        job.sync_s = 1;
        Loop loop(config);
        CHECK(run(job, loop, 30).decisions.empty());
    }

    TEST_CASE("the first two windows of a job are start-up, in which nothing is done") {
        EmulatedJob job({100, 100, 100});
        job.faults = {DeviceFaults{} | DeviceFault::kXid};
        Loop loop(acting());
        for (int i = 0; i < 2; ++i) {
            for (const Decision& decision : job.tick(loop).decisions) {
                CHECK(kind_of(decision) == ActionKind::kAlarm);
            }
        }
        const auto third = job.tick(loop).decisions;
        REQUIRE(third.size() == 1);
        CHECK(kind_of(third[0]) == ActionKind::kDrain);
    }

    TEST_CASE("sessions are remembered while their group is away, up to 8192 of them") {
        Loop loop(acting());
        EmulatedJob job({100, 50});
        job.serial = 1000;
        const auto first = run(job, loop, 20).directives.at(0);
        CHECK(first.serial == 1001);
        EmulatedJob crowd(std::vector<double>(8190, 100));
        crowd.group = 9;
        crowd.sessions_from = 1000;
        Window both = job.window();
        both.jobs.push_back(crowd.job());
        loop.tick(both);
        Window empty;
        empty.number = both.number + 1;
        loop.tick(empty);
        EmulatedJob rest({100, 50});
        rest.group = 8;
        rest.serial = 3;  // its pages say nothing of what was sent last
        CHECK(run(rest, loop, 20).directives.at(0).serial > first.serial);
    }

    TEST_CASE("a loss that gets worse ends a probation, where the interval can be made shorter") {
        for (const std::uint32_t interval : {4U, 1U}) {
            CAPTURE(interval);
            ControlConfig config = acting();
            config.actions = "shares,sync";
            config.probation = 30;
            EmulatedJob job({100, 50});
            job.noise = 0;
            job.interval = interval;
            Loop loop(config);
            REQUIRE(run_until(job, loop, ActionKind::kBatchShares));
            TickResult ended;
            for (int i = 0; i < 60 && ended.outcomes.empty(); ++i) {
                job.loss += 0.2;
                ended = job.tick(loop);
            }
            REQUIRE(ended.outcomes.size() == 1);
            if (interval == 1) {
                CHECK(ended.outcomes[0].outcome == Outcome::kKept);
                CHECK(ended.decisions.empty());
            } else {
                CHECK(ended.outcomes[0].reason == "the loss gets worse");
                REQUIRE(ended.decisions.size() == 1);
                CHECK(kind_of(ended.decisions[0]) == ActionKind::kSyncInterval);
            }
        }
    }

    TEST_CASE("outcomes are counted when they are there") {
        EmulatedJob job({100, 50});
        Loop loop(acting());
        REQUIRE(run_until(job, loop, ActionKind::kBatchShares));
        for (const std::uint64_t count : loop.counters().outcomes) CHECK(count == 0);
        CHECK(loop.counters().decisions[std::size_t(ActionKind::kBatchShares)] == 1);
        ControlConfig dry = acting();
        dry.mode = "dry-run";
        Loop other(dry);
        EmulatedJob again({100, 50});
        REQUIRE(run_until(again, other, ActionKind::kBatchShares));
        CHECK(other.counters().outcomes[std::size_t(Outcome::kNotApplied)] == 1);
    }

    TEST_CASE("a failure of another decision leaves a job's probation alone") {
        EmulatedJob job({100, 50});
        Loop loop(acting());
        REQUIRE(run_until(job, loop, ActionKind::kBatchShares));
        CHECK(loop.failed(999, "no such decision").id == 999);
        const auto later = run(job, loop, 20);
        REQUIRE(later.outcomes.size() == 1);
        CHECK(later.outcomes[0].outcome == Outcome::kKept);
    }

    TEST_CASE("a window that may be a glitch is not judged, but no more than two in a row") {
        const int usual = windows_until_judged(0);
        REQUIRE(usual > 20);
        REQUIRE(usual < 30);
        CHECK(windows_until_judged(1) == usual + 1);
        CHECK(windows_until_judged(2) == usual + 2);
        CHECK(windows_until_judged(3) == usual + 2);
        CHECK(windows_until_judged(4) == usual + 3);
        CHECK(windows_until_judged(5) == usual + 4);
    }

    TEST_CASE("shares are rolled back at once only for ranks that they made slower themselves") {
        // More work for the first three, less for the last: 2/7 and 1/7.
        const std::vector<double> uneven = {100, 100, 100, 50};
        CHECK(is_own_doing(uneven, 0, {30, 100, 100, 50}));
        // Not for one that has less, or as much as before,
        CHECK_FALSE(is_own_doing(uneven, 0, {100, 100, 100, 10}));
        CHECK_FALSE(is_own_doing({150, 100, 50}, 0, {150, 30, 50}));
        // nor where one that has more became faster, or when it was long ago,
        CHECK_FALSE(is_own_doing(uneven, 0, {30, 200, 100, 50}));
        CHECK_FALSE(is_own_doing(uneven, 5, {30, 100, 100, 50}));
        // nor when the job does as well as before: 75 samples/s less what waits, either way.
        CHECK_FALSE(is_own_doing({100, 50}, 0, {62, 50}));
        CHECK(is_own_doing({100, 50}, 0, {55, 50}));
    }

    TEST_CASE("what a failed device has replaced does not go on probation again") {
        ControlConfig config = acting();
        config.actions = "shares";
        EmulatedJob job({100, 100, 100, 25});
        Loop loop(config);
        REQUIRE(run_until(job, loop, ActionKind::kBatchShares));
        job.faults = {DeviceFaults{} | DeviceFault::kXid};
        const auto all = run(job, loop, 40);
        REQUIRE(!all.outcomes.empty());
        CHECK(all.outcomes[0].reason == "a device failed");
        for (std::size_t i = 1; i < all.outcomes.size(); ++i) {
            CHECK(all.outcomes[i].id != all.outcomes[0].id);
        }
    }

    TEST_CASE("a window is watched for what is allowed, and for jobs and shards in any case") {
        const auto watches = [](const char* actions, const Window& window) {
            ControlConfig config = acting();
            config.actions = actions;
            return Loop(config).watches(window);
        };
        Window vgpus, pool, shards, jobs;
        vgpus.devices.push_back({"gpu0", 1, 0, {}});
        pool.pool.devices.resize(2);
        shards.placement.shards.resize(1);
        jobs.jobs.resize(1);
        CHECK_FALSE(watches("quota,compute,pool,placement,shares", Window{}));
        CHECK((watches("quota", vgpus) && watches("compute", vgpus)));
        CHECK_FALSE((watches("pool", vgpus) || watches("quota,compute", pool)));
        CHECK((watches("pool", pool) && watches("", shards) && watches("", jobs)));
    }

    TEST_CASE("after each undoing in a row a kind waits twice as long, at most 16 times") {
        Trial trial;
        std::uint64_t id = 0;
        const auto judged = [&](double objective) {
            Decision decision;
            decision.id = ++id;
            decision.action = BatchShares{};
            decision.objective = decision.promised = 100;
            trial.begin(decision, 0);
            std::optional<DecisionOutcome> ended;
            for (int i = 0; i < 2; ++i) ended = trial.judge(objective, true, 1, 20);
            return ended->outcome;
        };
        const auto waits = [&] {
            int windows = 0;
            for (; !trial.may(ActionKind::kBatchShares); ++windows) trial.pass();
            return windows;
        };
        for (const int wait : {20, 40, 80, 160, 320, 320}) {
            CHECK(judged(50) == Outcome::kUndone);
            CHECK(waits() == wait);
        }
        CHECK(judged(100) == Outcome::kKept);
        CHECK(waits() == 0);
        CHECK(judged(50) == Outcome::kUndone);
        CHECK(waits() == 20);
        trial.promise_again(100, 100, true);
        CHECK(trial.promised_anew() == 0);
        trial.promise_again(100, 100, false);
        CHECK(trial.promised_anew() == 1);
    }
}

#include "fabricd/control/loop.hpp"

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

}  // namespace

TEST_SUITE("control.loop") {
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
                if (decision.kind != ActionKind::kAlarm) CHECK(decision.undoes == 0);
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

    TEST_CASE("an action that makes things worse is taken back and not tried again for long") {
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
                *fields[numbers.below(std::size(fields))] = numbers.awkward();
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
        CHECK(all.decisions[0].kind == ActionKind::kWorkUnits);
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
}

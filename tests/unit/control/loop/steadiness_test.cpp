// A loop that is steady: noise is no news, fixed costs are found out, speeds that keep changing are
// followed, and what a page does not hold is said once.

#include <doctest/doctest.h>

#include <cmath>

#include "fabricd/control/loop/loop.hpp"
#include "fabricd/control/stages/cost_model.hpp"
#include "fabricd/control/stages/data_flow.hpp"
#include "tests/unit/control/emulated_job.hpp"

using namespace fabricd;
using namespace control_test;

namespace {

ControlConfig acting() {
    ControlConfig config;
    config.mode = "on";
    config.actions = "shares";
    return config;
}

long count(const TickResult& all, Outcome outcome) {
    return std::count_if(all.outcomes.begin(), all.outcomes.end(),
                         [&](const DecisionOutcome& one) { return one.outcome == outcome; });
}

/// Mean samples/s over so many windows.
double mean_pace(EmulatedJob& job, Loop& loop, int windows, TickResult* all = nullptr) {
    double samples = 0;
    for (int i = 0; i < windows; ++i) {
        const TickResult result = run(job, loop, 1);
        samples += job.samples_per_s;
        if (all == nullptr) continue;
        all->decisions.insert(all->decisions.end(), result.decisions.begin(),
                              result.decisions.end());
        all->outcomes.insert(all->outcomes.end(), result.outcomes.begin(), result.outcomes.end());
    }
    return samples / windows;
}

/// Shares with which all ranks end together, as far as none is below a twentieth of the even share.
double pace_of(const EmulatedJob& job, const std::vector<double>& shares) {
    double slowest = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
        slowest = std::max(slowest, (job.batch * shares[i] + job.fixed) / job.speeds[i]);
    }
    return job.batch / slowest;
}

double best_pace(const EmulatedJob& job) {
    const std::vector<double> fixed(job.speeds.size(), job.fixed / job.batch);
    return pace_of(job, balanced_shares(job.speeds, fixed, 0.05).value());
}

}  // namespace

TEST_SUITE("control.loop.steadiness") {
    TEST_CASE("equal ranks with 10 % of noise are left alone for 1,500 windows") {
        for (const std::size_t ranks : {2, 4, 16, 64}) {
            CAPTURE(ranks);
            EmulatedJob job(std::vector<double>(ranks, 100));
            job.batch = 100.0 * static_cast<double>(ranks);
            job.normal_noise = 0.10;
            Loop loop(acting());
            TickResult all;
            mean_pace(job, loop, 1500, &all);
            CHECK(count(all, Outcome::kKept) == 0);
            CHECK(all.decisions.size() <= 1);
            const double even = 1.0 / static_cast<double>(ranks);
            for (const double share : job.shares) {
                CHECK(share == doctest::Approx(even).epsilon(0.01));
            }
        }
    }

    TEST_CASE("a rank at half speed is found among 64 with 10 % of noise") {
        EmulatedJob job(std::vector<double>(64, 100));
        job.batch = 6400;
        job.normal_noise = 0.10;
        Loop loop(acting());
        run(job, loop, 50);
        job.speeds[17] = 50;
        run(job, loop, 10);
        CHECK(job.shares[17] == doctest::Approx(50.0 / 6350).epsilon(0.15));
    }

    TEST_CASE("what a step costs is a line through two steps that differ by more than the noise") {
        const auto line = fit_cost({25, 0.65}, {10, 0.5}, 0.01, 0.01).value();
        CHECK(line.sample_s == doctest::Approx(0.01));
        CHECK(line.fixed_samples == doctest::Approx(40));
        CHECK_FALSE(fit_cost({25, 0.65}, {10, 0.5}, 0.2, 0.2));    // all of that may be noise
        CHECK_FALSE(fit_cost({25, 0.65}, {24, 0.64}, 0, 0));       // too much alike
        CHECK_FALSE(fit_cost({25, 0.25}, {10, 0.1}, 0.01, 0.01));  // in proportion
        CHECK_FALSE(fit_cost({25, 0.25}, {50, 0.6}, 0, 0));        // a larger share slows it
        CHECK_FALSE(fit_cost({25, 0.25}, {10, 0.3}, 0, 0));
        CHECK_FALSE(fit_cost({25, std::nan("")}, {10, 0.3}, 0, 0));
    }

    TEST_CASE("fixed costs do not make shares run away, and what helps is kept") {
        for (const double fixed : {0.0, 0.5, 1.5, 3.0}) {
            for (const auto& speeds :
                 {std::vector<double>{100, 100, 50, 25}, {100, 100, 100, 60}, {100, 60}}) {
                CAPTURE(fixed);
                CAPTURE(speeds.back());
                EmulatedJob job(speeds);
                job.fixed = fixed * job.batch / static_cast<double>(speeds.size());
                const double even = pace_of(job, job.shares);
                Loop loop(acting());
                TickResult all;
                mean_pace(job, loop, 120, &all);
                CHECK(count(all, Outcome::kUndone) == 0);
                const double best = best_pace(job);
                CHECK(mean_pace(job, loop, 60) >= std::max(0.9 * best, 0.98 * even));
                // No rank falls far below what is best for it.
                const std::vector<double> fixed_parts(speeds.size(), job.fixed / job.batch);
                const auto wanted = balanced_shares(speeds, fixed_parts, 0.05).value();
                for (std::size_t i = 0; i < speeds.size(); ++i) {
                    CHECK(job.shares[i] >= 0.6 * wanted[i]);
                }
            }
        }
    }

    TEST_CASE("two ranks that take turns at being slow are followed, and not given up") {
        for (const int period : {3, 4, 5, 6}) {
            for (const double slow : {40.0, 50.0}) {
                for (std::uint64_t seed = 1; seed <= 20; ++seed) {
                    CAPTURE(period);
                    CAPTURE(slow);
                    CAPTURE(seed);
                    EmulatedJob job({100, 100});
                    job.sow(seed);
                    Loop loop(acting());
                    run(job, loop, 20);
                    double samples = 0;
                    int worst = 0;
                    int since = 0;
                    const int windows = 400;
                    for (int i = 0; i < windows; ++i) {
                        const bool first = i / period % 2 == 0;
                        job.speeds = {first ? slow : 100.0, first ? 100.0 : slow};
                        const auto result = run(job, loop, 1);
                        samples += job.samples_per_s;
                        since = result.directives.empty() ? since + 1 : 0;
                        worst = std::max(worst, since);
                    }
                    // With even shares each in turn holds up the other.
                    CHECK(samples / windows >= (period == 3 ? 1.2 : 1.25) * 2 * slow);
                    CHECK(worst <= 12);
                }
            }
        }
    }

    // Turns of any length of 4 to 6 windows: what the speeds are is known at the end of a window,
    // and a window with both speeds in it shows neither.
    TEST_CASE("speeds that change places inside windows are followed, whenever they do") {
        const auto worst_of = [](double slow, double least, double most) {
            double worst = 10;
            for (std::uint64_t seed = 1; seed <= 20; ++seed) {
                EmulatedJob job({100, 100});
                job.sow(seed);
                Loop loop(acting());
                run(job, loop, 20);
                Numbers numbers(seed);
                double samples = 0, next = 4 * numbers.uniform();
                const int windows = 400;
                for (int i = 0; i < windows; ++i) {
                    const bool first = job.speeds[0] <= job.speeds[1];
                    const std::vector<double> now{first ? slow : 100, first ? 100 : slow};
                    const std::vector<double> then{now[1], now[0]};
                    job.speeds = now;
                    if (next < i + 1) {
                        job.turn(then, std::max(next - i, 0.0));
                        next += least + (most - least) * numbers.uniform();
                    }
                    run(job, loop, 1);
                    samples += job.samples_per_s;
                }
                worst = std::min(worst, samples / windows / (2 * slow));
            }
            return worst;
        };
        CHECK(worst_of(50, 4, 6) >= 1.24);
        CHECK(worst_of(40, 4, 6) >= 1.35);
        CHECK(worst_of(50, 15, 40) >= 1.38);
        // Turns of three, and of always the same part of a window, can't be followed that well.
        CHECK(worst_of(50, 4, 4) >= 1.14);
        CHECK(worst_of(50, 3, 3) >= 1.0);
    }

    TEST_CASE("while a second rank may be about to change as well, shares wait for one window") {
        EmulatedJob job({100, 100, 100});
        job.noise = 0;
        Loop loop(acting());
        run(job, loop, 20);
        job.speeds[0] = 50;
        CHECK(run(job, loop, 1).directives.empty());
        job.speeds[1] = 50;  // while the first one is believed
        CHECK(run(job, loop, 1).directives.empty());
        const auto both = run(job, loop, 1);
        REQUIRE(both.directives.size() == 1);
        CHECK(both.directives[0].shares[0] == doctest::Approx(0.25));
        CHECK(both.directives[0].shares[1] == doctest::Approx(0.25));
    }

    TEST_CASE("a probation that a new speed breaks off is judged at that speed") {
        EmulatedJob job({100, 100, 50, 50});
        job.noise = 0;
        Loop loop(acting());
        while (run(job, loop, 1).directives.empty()) {
        }
        run(job, loop, 4);
        for (double& speed : job.speeds) speed *= 0.7;  // all alike: the shares stay right
        const auto all = run(job, loop, 12);
        REQUIRE(all.outcomes.size() == 1);
        CHECK(all.outcomes[0].outcome == Outcome::kKept);
    }

    TEST_CASE("what was not judged for silence is judged when there is news again") {
        EmulatedJob job({100, 100, 50, 25});
        Loop loop(acting());
        while (run(job, loop, 1).directives.empty()) {
        }
        TickResult all;
        for (int i = 0; i < 30; ++i) {
            Window window = job.window();
            if (i > 2 && i < 15) window.jobs[0].ranks[1].stale = true;
            const auto result = loop.tick(window);
            all.outcomes.insert(all.outcomes.end(), result.outcomes.begin(), result.outcomes.end());
        }
        REQUIRE(all.outcomes.size() == 2);
        CHECK(all.outcomes[0].outcome == Outcome::kUnjudged);
        CHECK(all.outcomes[1].outcome == Outcome::kKept);
        CHECK(all.outcomes[1].id == all.outcomes[0].id);
    }

    TEST_CASE("a job that is larger than a directive is watched, and that is said once") {
        for (const std::size_t ranks : {256, 257, 300}) {
            EmulatedJob job(std::vector<double>(ranks, 100));
            job.batch = 100.0 * static_cast<double>(ranks);
            job.speeds[3] = 40;
            Loop loop(acting());
            const auto all = run(job, loop, 200);
            const bool fits = ranks <= 256;
            CHECK(all.directives.empty() == !fits);
            CHECK(all.decisions.empty() == !fits);
            CHECK(all.notes.size() == (fits ? 0 : 1));
            if (fits) continue;
            CHECK(all.notes[0] == "arena 1 group 7 has " + std::to_string(ranks) +
                                      " ranks, and a directive holds 256: it is watched and not "
                                      "directed");
        }
        // Where no page bounds it, as in the simulator, any size will do.
        ControlConfig config = acting();
        config.max_directed = 0;
        EmulatedJob job(std::vector<double>(256, 100));
        job.batch = 25600;
        job.speeds[3] = 40;
        Loop loop(config);
        CHECK(run(job, loop, 20).directives.size() >= 1);
        CHECK(job.samples_per_s > 0.9 * job.ideal());
    }
}

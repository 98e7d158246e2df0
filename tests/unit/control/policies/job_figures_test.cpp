// What the loop makes of a job's window, and what it promises of an action, in figures that are
// worked out by hand from docs/control_loop.md.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fabricd/control/policies/job_policy.hpp"
#include "fabricd/control/policies/share_plan.hpp"
#include "fabricd/control/policies/slow_ranks.hpp"
#include "fabricd/control/policies/state.hpp"
#include "tests/support/decision_values.hpp"

using namespace fabricd;
using doctest::Approx;
using Doubles = std::vector<double>;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Two ranks with 4 steps: rank 0 computed 10 samples in 0.2 s each, rank 1 30 in 0.3 s.
JobWindow window_of_two() {
    JobWindow window{1, 7, 2, {}};
    for (int i = 0; i < 2; ++i) {
        RankWindow rank;
        rank.session = 5 + static_cast<std::uint64_t>(i);
        rank.rank = i;
        rank.steps = 4;
        rank.samples = i == 0 ? 40 : 120;
        rank.compute_s = i == 0 ? 0.8 : 1.2;
        rank.step_s = i == 0 ? 1.6 : 2.0;
        rank.wait_s = i == 0 ? 0.4 : 0;
        rank.comm_s = i == 0 ? 0.08 : 0.04;
        rank.bytes = 400;
        rank.loss = rank.gradient_norm = rank.mean_gradient_norm = kNan;
        window.ranks.push_back(rank);
    }
    return window;
}

struct Seen {
    ControlConfig config;
    SmoothingWeights weights{config};
    JobWindow window = window_of_two();
    JobState job = new_job(window);

    JobState& look() {
        observe(job, window, config, weights);
        return job;
    }
};

Ewma known_mean(double mean, std::uint32_t values = 10, double deviation = 0) {
    Ewma known;
    known.mean = mean;
    known.values = values;
    known.deviation = deviation;
    known.last = mean;
    known.sound = {mean, deviation, true};
    return known;
}

/// Ranks of so many seconds per sample, with even shares of 100 samples, in steps of 1 s.
JobState job_of(const Doubles& sample_s) {
    JobState job;
    job.world = static_cast<std::int32_t>(sample_s.size());
    for (std::size_t i = 0; i < sample_s.size(); ++i) {
        RankState rank;
        rank.rank = static_cast<std::int32_t>(i);
        rank.sample_s = known_mean(sample_s[i]);
        rank.share = 1.0 / static_cast<double>(sample_s.size());
        rank.samples = 100 * rank.share;
        rank.compute_s = rank.samples * sample_s[i];
        job.ranks.push_back(rank);
    }
    job.batch = 100;
    job.step_s = known_mean(1);
    job.objective = known_mean(50);
    job.unbalanced.begin();
    return job;
}

double fact_of(const Decision& decision, const std::string& stage, const std::string& name,
               int rank = -1) {
    for (const Fact& fact : decision.facts) {
        if (fact.stage == stage && fact.name == name && fact.rank == rank) return fact.value;
    }
    return kNan;
}

long facts_of(const Decision& decision, const std::string& name) {
    return std::count_if(decision.facts.begin(), decision.facts.end(),
                         [&](const Fact& fact) { return fact.name == name; });
}

}  // namespace

TEST_SUITE("control.policies.job_figures") {
    TEST_CASE("a window's sums become figures of one step") {
        Seen seen;
        seen.window.ranks[0].gradient_norm = 3;
        const JobState& job = seen.look();
        CHECK(job.fresh);
        CHECK(job.ranks[0].samples == 10);
        CHECK(job.ranks[1].samples == 30);
        CHECK(job.ranks[0].compute_s == Approx(0.2));
        CHECK(job.ranks[1].compute_s == Approx(0.3));
        CHECK(job.ranks[0].share == 0.25);
        CHECK(job.ranks[0].sample_s.mean == Approx(0.02));
        CHECK(job.ranks[1].speed() == Approx(100));
        CHECK(job.ranks[0].comm_s.mean == Approx(0.02));
        CHECK(job.ranks[0].gradients.wait_s.level == Approx(0.1));
        CHECK(job.ranks[0].gradients.bytes.level == Approx(100));
        CHECK(job.ranks[0].gradients.norm.level == 3);
        CHECK(job.batch == 40);
        CHECK(job.step_s.mean == Approx(0.5));   // the longest
        CHECK(job.comm_s.mean == Approx(0.01));  // the least
        // 0.2 and 0.3 s: a mean of 0.25 of the longest 0.3.
        CHECK(job.imbalance_now == Approx(1.0 / 6));
        CHECK(job.objective_now == Approx(80 * 5.0 / 6));
        CHECK(job.imbalance()->index == Approx(1.0 / 6));
        CHECK(job.noise_scale.values == 0);
    }

    TEST_CASE("the noise scale is made of the squares of the norms of rank 0") {
        Seen seen;
        // 10 of 40 samples: |G|^2 = 4 and tr = 100 make 14 and 6.5.
        seen.window.ranks[0].gradient_norm = std::sqrt(14.0);
        seen.window.ranks[0].mean_gradient_norm = std::sqrt(6.5);
        CHECK(seen.look().noise_scale.mean == Approx(25));
    }

    TEST_CASE("one number that is none makes the window one without news") {
        const auto is_news = [](const auto& change) {
            Seen seen;
            change(seen.window);
            return seen.look().fresh;
        };
        CHECK(is_news([](JobWindow&) {}));
        CHECK_FALSE(is_news([](JobWindow& window) { window.ranks[1].stale = true; }));
        CHECK_FALSE(is_news([](JobWindow& window) { window.ranks[1].steps = 0; }));
        CHECK_FALSE(is_news([](JobWindow& window) { window.ranks[1].step_s = 0; }));
        CHECK_FALSE(is_news([](JobWindow& window) { window.ranks[1].wait_s = kNan; }));
        CHECK_FALSE(is_news([](JobWindow& window) { window.ranks[1].rank = 2; }));
        CHECK_FALSE(is_news([](JobWindow& window) { window.ranks.pop_back(); }));
        Seen seen;
        seen.job.ranks.emplace_back();
        CHECK_FALSE(seen.look().fresh);
        CHECK(seen.job.silent == 1);
    }

    TEST_CASE("a rank without samples or without computing says nothing of its speed") {
        Seen seen;
        seen.look();
        seen.window.ranks[0].samples = 0;
        seen.window.ranks[1].compute_s = 0;
        const JobState& job = seen.look();
        CHECK(job.ranks[0].sample_s.values == 1);
        CHECK(job.ranks[0].sample_s.age == 1);
        CHECK(job.ranks[1].sample_s.values == 1);
        CHECK(job.ranks[1].sample_s.mean == Approx(0.01));
    }

    TEST_CASE("a batch of nothing has no shares") {
        Seen seen;
        for (RankWindow& rank : seen.window.ranks) rank.samples = 0;
        CHECK(seen.look().ranks[0].share == 0);
        CHECK(seen.job.objective_now == 0);
    }

    TEST_CASE(
        "scatter is the mean relative deviation of the working ranks, and not below the floor") {
        Seen seen;
        seen.look();
        CHECK(seen.job.scatter == seen.config.noise_floor / 2);
        seen.job.ranks[0].sample_s = known_mean(0.02, 50, 0.004);
        seen.job.ranks[1].sample_s = known_mean(0.01, 50, 0.001);
        const JobState& job = seen.look();  // the same values: each deviation loses its weight
        const double left = 1 - seen.weights.level;
        CHECK(job.scatter == Approx(left * (0.2 + 0.1) / 2));
        seen.job.ranks[0].drained = true;
        CHECK(seen.look().scatter == Approx(left * left * 0.1));
        // Of one value nothing is known.
        seen.job.ranks[0].drained = false;
        seen.job.ranks[0].sample_s = Ewma{};
        CHECK(seen.look().scatter == Approx(left * left * left * 0.1));
    }

    TEST_CASE("an imbalance is certain as far as chance can't have made it") {
        JobState job = job_of({0.02, 0.01});
        job.scatter = 0;
        // 1 s and 0.5 s.
        CHECK(job.certain_imbalance() == Approx(0.25));
        job.scatter = 0.04;
        const double doubt = 1.25 * 0.04 / std::sqrt(10.0);
        const double certain = 1 - (1 + std::sqrt(2 * std::log(2.0))) * doubt;
        CHECK(job.certain_imbalance() == Approx(1 - 0.75 / certain));
        job.scatter = 10;
        CHECK(job.certain_imbalance() == 0);
        // Of a rank with one value more is in doubt, and no number of values counts for more
        // than 10.
        job.scatter = 0.04;
        job.ranks[0].sample_s.values = 1;
        const double doubtful = 1 - (1 + std::sqrt(2 * std::log(2.0))) * 1.25 * 0.04;
        CHECK(job.certain_imbalance() == Approx(1 - 0.75 / doubtful));
        job.ranks[0].sample_s.values = 90;
        CHECK(job.certain_imbalance() == Approx(1 - 0.75 / certain));
        job.ranks[1].drained = true;
        CHECK(job.certain_imbalance() == 0);  // alone
        job.ranks[1].drained = false;
        job.ranks[1].sample_s = Ewma{};
        CHECK(job.certain_imbalance() == 0);
        CHECK_FALSE(job.imbalance());
        job.ranks[1].drained = true;
        CHECK(job.imbalance()->index == 0);
        JobState idle = job_of({0, 0});
        CHECK(idle.certain_imbalance() == 0);
    }

    TEST_CASE("a leap of a rank's speed is answered at once, one within its scatter is not") {
        const auto leaps = [](double before, double deviation) {
            Seen seen;
            seen.look();
            seen.job.unbalanced = Hysteresis{};  // its windows in a row are another matter
            // The other one, whose scatter is the job's as well.
            for (std::size_t i = 0; i < 2; ++i) {
                const double mean = i == 0 ? before : 0.01;
                seen.job.ranks[i].sample_s = known_mean(mean, 50, deviation * mean);
            }
            seen.window.ranks[0].samples = 8;  // 0.1 s a sample
            seen.look();
            seen.look();
            return seen.job.unbalanced.active();
        };
        CHECK(leaps(0.02, 0.01));
        CHECK_FALSE(leaps(0.09, 0.01));   // by a ninth, which is a new speed, and no leap
        CHECK_FALSE(leaps(0.085, 0.01));  // by a sixth
        CHECK(leaps(0.082, 0.01));        // by more than a fifth
    }

    TEST_CASE("a change is set against the steps of before, of ranks that work") {
        JobState job = job_of({0.02, 0.01, 0.03, 0.04});
        job.scatter = 0.08;
        job.ranks[0].fixed_samples = 5;
        job.ranks[1].drained = true;
        job.ranks[2].samples = 0;
        job.ranks[3].sample_s = Ewma{};
        job.ranks[0].sample_s.suspect_side = 1;
        job.begin_probe();
        CHECK(job.is_probing);
        CHECK(job.ranks[0].sample_s.suspect_side == 0);
        const CostProbe& probe = job.ranks[0].probe;
        CHECK(probe.before.samples == 25);
        CHECK(probe.before.compute_s == Approx(0.02 * 30));
        CHECK(probe.scatter == Approx(0.1));
        CHECK(probe.before_scatter == Approx(0.1 / std::sqrt(10.0)));
        for (std::size_t i = 1; i < 4; ++i) CHECK(job.ranks[i].probe.before.samples == 0);
        // A speed that was seen once may be of a window with two speeds in it.
        job.ranks[0].sample_s.sound.known = false;
        job.begin_probe();
        CHECK(job.ranks[0].probe.before_scatter == Approx(0.1));
        job.scatter = 0.8;
        job.begin_probe();
        CHECK(job.ranks[0].probe.before_scatter == Approx(1 / std::sqrt(10.0)));
    }

    TEST_CASE("the loss gets worse when it rises by more per half-life than it jumps") {
        ControlConfig config;
        const SmoothingWeights weights(config);
        CHECK(weights.level == Approx(1 - std::exp2(-1.0 / 5)));
        CHECK(weights.slope == Approx(1 - std::exp2(-1.0 / 10)));
        const auto worsens_after = [&](double rise, int most) {
            LossWatch watch;
            for (int i = 1; i <= most; ++i) {
                watch.update(1 + rise * i, config, weights);
                if (watch.worsens.active()) return i;
            }
            return 0;
        };
        // Known after twice the half-life, and then for three windows.
        CHECK(worsens_after(0.1, 100) == 13);
        CHECK(worsens_after(0, 100) == 0);
        CHECK(worsens_after(-0.1, 100) == 0);
        LossWatch watch;
        watch.update(1, config, weights);
        CHECK(watch.scatter == 0);
        watch.update(3, config, weights);
        CHECK(watch.scatter == Approx(2 * weights.level));
        watch.update(kNan, config, weights);
        CHECK(watch.trend.values == 2);
        // A seventh of a jump per window: 5/7 of one within the half-life.
        LossWatch jumps;
        for (int i = 0; i < 200; ++i) {
            jumps.update(i / 14.0 + (i % 2 == 0 ? 0.5 : 0), config, weights);
        }
        CHECK_FALSE(jumps.worsens.active());
    }

    TEST_CASE("a serial that no daemon gets to is not believed") {
        Seen seen;
        seen.window.ranks[1].directive_serial = std::uint64_t{1} << 62;
        CHECK(seen.look().serial_seen == std::uint64_t{1} << 62);
        seen.window.ranks[1].directive_serial = (std::uint64_t{1} << 62) + 1;
        seen.window.ranks[0].faults = 1;
        CHECK(seen.look().serial_seen == std::uint64_t{1} << 62);
        CHECK(seen.job.ranks[0].fault_windows == 1);
        CHECK(seen.look().ranks[0].fault_windows == 2);
        seen.window.ranks[0].faults = 0;
        CHECK(seen.look().ranks[0].fault_windows == 0);
        JobWindow other = seen.window;
        CHECK(seen.job.is_of(other));
        other.world = 3;
        CHECK_FALSE(seen.job.is_of(other));
        other = seen.window;
        other.ranks[1].session = 9;
        CHECK_FALSE(seen.job.is_of(other));
        other.ranks.pop_back();
        CHECK_FALSE(seen.job.is_of(other));
    }

    TEST_CASE("what shares promise: the slowest rank's time, and what a step takes besides") {
        const JobState job = job_of({0.016, 0.004});
        // Now 0.8 s and 0.2 s, in steps of 1 s; in balance 0.32 s each.
        const Promise promise = promise_of_shares(job, {0.5, 0.5}, {0.2, 0.8});
        CHECK(promise.before_s == Approx(1));
        CHECK(promise.after_s == Approx(0.52));
        CHECK(promise.cost_s == Approx(0.3));
        const Promise back = promise_of_return(job, {0.5, 0.5}, {0.2, 0.8});
        CHECK(back.before_s == Approx(0.8 + 0.68));
        CHECK(back.after_s == Approx(1));
        CHECK(back.cost_s == 0);
        JobState short_steps = job;
        short_steps.step_s = known_mean(0.1);  // of before, when all was faster
        CHECK(promise_of_shares(short_steps, {0.5, 0.5}, {0.2, 0.8}).before_s == Approx(0.8));
        CHECK(promise_of_shares(short_steps, {0.5, 0.5}, {0.2, 0.8}).cost_s == Approx(0.03));
        CHECK(promise_of_return(short_steps, {0.5, 0.5}, {0.5, 0.5}).after_s == Approx(0.8));
        CHECK(objective_of(job, {0.5, 0.5}, 1) == Approx(100 * (1 - 0.375)));
        CHECK(objective_of(job, {0.2, 0.8}, 0.5) == Approx(200));
        CHECK(objective_of(job, {0.2, 0.8}, 0) == 0);
    }

    TEST_CASE("a decision about shares has the figures that it was made of") {
        ControlConfig config;
        JobState job = job_of({0.016, 0.004});
        job.ranks[0].fixed_samples = 1;
        job.noise_scale = known_mean(77);
        job.imbalance_now = 0.5;
        const auto decision = propose_shares(job, config).value();
        // (1 + 100 b0) 0.016 = 100 b1 0.004.
        CHECK(after_of(decision)[0] == Approx(0.2 * 1.01 - 0.01));
        CHECK(fact_of(decision, "guard", "step time now") == Approx(1));
        const double after_s = 0.016 * (1 + 100 * after_of(decision)[0]) + (1 - 0.816);
        CHECK(fact_of(decision, "guard", "step time predicted") == Approx(after_s));
        CHECK(decision.gain == Approx(1 / after_s - 1));
        CHECK(decision.cost_s == Approx(0.5 - after_of(decision)[0]));
        CHECK(decision.promised == Approx(100 / after_s));
        CHECK(decision.objective == 50);
        CHECK(fact_of(decision, "S113", "fixed part of a step", 0) == 1);
        CHECK(std::isnan(fact_of(decision, "S113", "fixed part of a step", 1)));
        CHECK(fact_of(decision, "S113", "speed", 1) == Approx(250));
        CHECK(fact_of(decision, "S111", "gradient noise scale") == 77);
        CHECK(fact_of(decision, "S113", "part that moves") == Approx(0.5 - after_of(decision)[0]));
        job.noise_scale = Ewma{};
        CHECK(facts_of(propose_shares(job, config).value(), "gradient noise scale") == 0);
        // A fifth of the batch at once at most: two thirds of the way.
        config.share_step = 0.2;
        const auto step = propose_shares(job, config).value();
        CHECK(after_of(step)[0] == Approx(0.3));
        CHECK(after_of(step)[1] == Approx(0.7));
    }

    TEST_CASE(
        "no shares without an imbalance, a batch, or a rank's speed; not all ranks are directed") {
        const ControlConfig config;
        JobState job = job_of({0.016, 0.004});
        job.batch = 0;
        CHECK_FALSE(propose_shares(job, config));
        job = job_of({0.016, 0.004});
        job.ranks[1].sample_s = Ewma{};
        CHECK_FALSE(propose_shares(job, config));
        CHECK_FALSE(all_speeds_known(job));
        job = job_of({0.016, 0.004});
        job.unbalanced = Hysteresis{};
        CHECK_FALSE(propose_shares(job, config));
        Doubles speeds(70, 0.01);
        speeds[0] = 0.05;
        job = job_of(speeds);
        const auto decision = propose_shares(job, config).value();
        CHECK(facts_of(decision, "speed") == static_cast<long>(kExplainedRanks));
    }

    TEST_CASE("units follow speed and response, and promise the step without the waiting") {
        const ControlConfig config;
        JobState job = job_of({0.016, 0.004});
        for (RankState& rank : job.ranks) rank.queue = 10;
        // A task is 5 samples: 0.08 s and 0.02 s. In proportion 4 and 16: 0.32 s each.
        auto decision = propose_units(job, config).value();
        CHECK(after_of(decision) == Doubles{4, 16});
        CHECK(fact_of(decision, "guard", "step time now") == Approx(1));
        CHECK(fact_of(decision, "guard", "step time predicted") == Approx(0.52));
        CHECK(fact_of(decision, "guard", "cost") == 1);
        CHECK(fact_of(decision, "S222", "resources", 1) == 1);
        CHECK(fact_of(decision, "S223", "time of a task", 0) == Approx(0.08));
        CHECK(decision.promised == Approx(50 / 0.52));
        // The fast one answers after half a second, as long as the ranks compute in the mean: in a
        // second of both it does half as much. 6.67 and 13.33 tasks, of which the slow one has 6.
        job.ranks[1].comm_s = known_mean(0.5);
        decision = propose_units(job, config).value();
        CHECK(after_of(decision) == Doubles{6, 14});
        // One without tasks is judged by the job's samples per task.
        job = job_of({0.016, 0.004});
        job.ranks[0].queue = 20;
        job.ranks[0].compute_s = 1.6;
        decision = propose_units(job, config).value();
        CHECK(fact_of(decision, "S223", "time of a task", 1) == Approx(0.02));
        CHECK(fact_of(decision, "S223", "time of a task", 0) == Approx(0.08));
        CHECK(after_of(decision) == Doubles{4, 16});
        // Longer computing than steps: nothing besides.
        CHECK(fact_of(decision, "guard", "step time now") == Approx(1.6));
        job.ranks[0].queue = 0;
        CHECK_FALSE(propose_units(job, config));
        job.ranks[0].queue = 20;
        job.unbalanced = Hysteresis{};
        CHECK_FALSE(propose_units(job, config));
        job = job_of({0.01, 0.01});
        for (RankState& rank : job.ranks) rank.queue = 10;
        CHECK_FALSE(propose_units(job, config));  // they are so already
    }

    TEST_CASE(
        "an interval has the figures of S312, and is worth a change of more than the least gain") {
        ControlConfig config;
        JobState job = job_of({0.01, 0.01});
        job.comm_s = known_mean(0.2);
        // 0.2 s for each 0.8 s: a quarter of a step, with 10 % allowed: every third.
        auto decision = propose_interval(job, config).value();
        CHECK(after_of(decision) == Doubles{3});
        CHECK(fact_of(decision, "S312", "kappa") == Approx(0.25));
        const double after_s = 0.8 + 0.2 / 3;
        CHECK(decision.gain == Approx(1 / after_s - 1));
        CHECK(decision.promised == Approx(50 / after_s));
        // Three steps share one synchronisation: it takes three times the mean.
        job.ranks[0].sync_interval = 3;
        job.comm_s = known_mean(0.2 / 3);
        job.step_s = known_mean(0.8 + 0.2 / 3);
        CHECK_FALSE(propose_interval(job, config));
        job.step_s = known_mean(0.2 / 3);  // all of it: nothing is known of computing
        CHECK_FALSE(propose_interval(job, config));
        job.comm_s = known_mean(9);  // more than all
        CHECK_FALSE(propose_interval(job, config));
        // The loss gets worse: half of it, without any figures, and never below 1.
        job.loss.worsens.begin();
        CHECK(after_of(*propose_interval(job, config)) == Doubles{1});
        job.ranks[0].sync_interval = 1;
        CHECK_FALSE(propose_interval(job, config));
        // A gain of exactly the least one is none: 1.25 s become 1 s.
        job = job_of({0.01, 0.01});
        job.step_s = known_mean(1.25);
        job.comm_s = known_mean(0.5);
        config.sync_max = 2;
        config.gain = 0.25;
        CHECK_FALSE(propose_interval(job, config));
        config.gain = 0.24;
        CHECK(after_of(*propose_interval(job, config)) == Doubles{2});
    }

    TEST_CASE("a rank is slow below its part of the median, for long, and well again at once") {
        ControlConfig config;
        config.alarm_speed = 0.25;
        config.alarm_windows = 2;
        JobState job = job_of({0.01, 0.01, 0.04});  // a quarter is not below a quarter
        for (int i = 0; i < 9; ++i) CHECK_FALSE(watch_for_slow_rank(job, config));
        job.ranks[2].sample_s = known_mean(0.041);
        CHECK_FALSE(watch_for_slow_rank(job, config));
        const auto alarm = watch_for_slow_rank(job, config).value();
        CHECK(rank_of(alarm) == 2);
        CHECK(fact_of(alarm, "alarm", "slow for", 2) == 2);
        CHECK(fact_of(alarm, "alarm", "median speed") == Approx(100));
        // A rank of unknown speed is no slow one, and no part of the median.
        job = job_of({0.01, 0.01, 0.01, 0.045, 0.045});
        for (std::size_t i = 0; i < 2; ++i) job.ranks[i].sample_s = Ewma{};
        for (int i = 0; i < 9; ++i) CHECK_FALSE(watch_for_slow_rank(job, config));
    }

    TEST_CASE("a drained rank is tried with a twentieth of the even share, and promised nothing") {
        ControlConfig config;
        JobState job = job_of({0.01, 0.01, 0.01, 0.01});
        job.ranks[3].drained = true;
        job.ranks[3].share = 0;
        job.ranks[3].drained_windows = config.drain_retry - 1;
        CHECK_FALSE(propose_return(job, config));
        ++job.ranks[3].drained_windows;
        const auto decision = propose_return(job, config).value();
        CHECK(after_of(decision)[3] == Approx(0.05 / 4));
        CHECK(after_of(decision)[0] == Approx(0.25 * (1 - 0.05 / 4)));
        CHECK(decision.promised == Approx(50 * 3.0 / 4));
        config.share_floor = 0;
        CHECK(after_of(*propose_return(job, config))[3] == Approx(0.01 / 4));
        job.objective = Ewma{};
        job.objective_now = 40;
        CHECK(propose_return(job, config)->promised == Approx(30));
        job.ranks[3].relapses = 2;
        CHECK_FALSE(propose_return(job, config));
    }
}

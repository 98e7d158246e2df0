// What stages and guards do exactly at their limits, and what they make of inputs of which one
// alone is unusable. Figures are worked out by hand from the formulas of docs/control_reference.md.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "fabricd/control/journal/window.hpp"
#include "fabricd/control/loop/control_metrics.hpp"
#include "fabricd/control/loop/page_actuator.hpp"
#include "fabricd/control/loop/replay.hpp"
#include "fabricd/control/policies/guards.hpp"
#include "fabricd/control/policies/pool_policy.hpp"
#include "fabricd/control/policies/promises.hpp"
#include "fabricd/control/policies/quota_plan.hpp"
#include "fabricd/control/policies/shard_watch.hpp"
#include "fabricd/control/stages/allocation.hpp"
#include "fabricd/control/stages/allocation_ratio.hpp"
#include "fabricd/control/stages/apportion.hpp"
#include "fabricd/control/stages/cost_model.hpp"
#include "fabricd/control/stages/data_flow.hpp"
#include "fabricd/control/stages/gradients.hpp"
#include "fabricd/control/stages/imbalance.hpp"
#include "fabricd/control/stages/placement.hpp"
#include "fabricd/control/stages/priority.hpp"
#include "fabricd/control/stages/reassignment.hpp"
#include "fabricd/control/stages/resources.hpp"
#include "fabricd/control/stages/smoothing.hpp"
#include "fabricd/control/stages/vgpu.hpp"
#include "tests/support/decision_values.hpp"

using namespace fabricd;
using doctest::Approx;
using Doubles = std::vector<double>;
using Units = std::vector<std::uint64_t>;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Two nodes with a way of 1 GB/s; node 1 reads 100 MB/s of an item of 100 MB that node 0 has.
PlacementInput two_nodes() {
    PlacementInput input;
    input.nodes = {{100, 0}, {100, 1e9}};
    input.bandwidth = {0, 1e9, 1e9, 0};
    input.items = {{7, 1e8, 0, {0, 1e8}}};
    return input;
}

PlacementWindow one_shard(std::uint32_t home, bool moving = false) {
    PlacementWindow window;
    window.nodes = {{"a", 1, 1}, {"b", 1, 1}};
    window.bandwidth = {0, 1, 1, 0};
    window.shards = {{1, 10, 0, home, {1, 2}, "job/s", moving}};
    return window;
}

/// Looks until the shard may be moved again.
int looks_until_ready(ShardWatch& watch, const PlacementWindow& window) {
    const ControlConfig config;
    for (int looks = 1; looks < 1000; ++looks) {
        if (!watch.update(window, config, 0.1).shards.empty()) return looks;
    }
    return 1000;
}

Decision decision_in(std::uint64_t window, double after) {
    Decision decision;
    decision.window = window;
    // Of no kind that is known: any numbers.
    decision.action = UnknownAction{{ActionKind::kBatchShares, -1, {"a"}, {}, {after}}};
    return decision;
}

}  // namespace

TEST_SUITE("control.loop.edges") {
    TEST_CASE("a value on a threshold speaks for no change") {
        Hysteresis hysteresis;
        CHECK_FALSE(hysteresis.update(0.5, 0.5, 0.25, 1));
        CHECK(hysteresis.update(0.51, 0.5, 0.25, 1));
        CHECK(hysteresis.update(0.25, 0.5, 0.25, 1));
        CHECK_FALSE(hysteresis.update(0.24, 0.5, 0.25, 1));
    }

    TEST_CASE("a gain needs two times that take any") {
        CHECK(gain_of({1.25, 1, 0}) == 0.25);
        CHECK(gain_of({0, 1, 0}) == 0);
        CHECK(gain_of({1, 0, 0}) == 0);
        CHECK(gain_of({kInfinity, 1, 0}) == 0);
        CHECK(gain_of({1, kInfinity, 0}) == 0);
        // 0.25 more in the same time: of 10 s, 2 are saved.
        CHECK_FALSE(is_worth_it({1.25, 1, 0}, 0.25, 10));
        CHECK_FALSE(is_worth_it({1.25, 1, 2}, 0.2, 10));
        CHECK(is_worth_it({1.25, 1, 1.9}, 0.2, 10));
    }

    TEST_CASE("a probation counts from the second window in force, and waits twice as long") {
        Probation probation;
        probation.decision = 1;
        probation.before = 6;
        probation.promised = 10;
        using Verdict = Probation::Verdict;
        CHECK(probation.least() == 8);  // half of the promised gain
        CHECK(probation.update(1000, true, 2) == Verdict::kRunning);
        CHECK(probation.mean() == 0);
        CHECK(probation.update(kNan, true, 2) == Verdict::kRunning);
        CHECK(probation.update(9, true, 2) == Verdict::kRunning);
        CHECK(probation.update(7, true, 2) == Verdict::kKept);  // 8, no worse than the least
        CHECK(probation.mean() == 8);
        probation.noise = 0.15;
        CHECK(probation.least() == 7);
        Probation ignored;
        ignored.decision = 1;
        for (int i = 0; i < 4; ++i) CHECK(ignored.update(1, false, 2) == Verdict::kRunning);
        CHECK(ignored.update(1, false, 2) == Verdict::kIgnored);
    }

    TEST_CASE(
        "a new promise is no less than what was there, and begins again unless it is the same") {
        Probation probation;
        probation.decision = 1;
        for (const double value : {0.0, 10.0, 10.0}) probation.update(value, true, 5);
        probation.promise_again(8, 6, true);
        CHECK(probation.promised == 8);
        CHECK(probation.before == 8);
        CHECK(probation.mean() == 10);
        probation.promise_again(8, 9, false);
        CHECK(probation.promised == 9);
        CHECK(probation.sum == 0);
        // None of these windows is mixed: the first one counts.
        probation.update(4, true, 5);
        CHECK(probation.mean() == 4);
    }

    TEST_CASE("a line through two steps shows what a step costs whatever the samples") {
        // 0.1 s a sample and 1 s each step.
        const StepCost before{10, 2}, after{20, 3};
        const auto line = fit_cost(before, after, 0.05, 0.05).value();
        CHECK(line.sample_s == Approx(0.1));
        CHECK(line.fixed_samples == Approx(10));
        // Their scatter moves the fixed part by 0.4 s, of which three times are more than it is.
        CHECK_FALSE(fit_cost(before, after, 0.08, 0.08));
        // In proportion, the same time for more, or as good as the same step.
        CHECK_FALSE(fit_cost({10, 1}, {20, 2}, 0, 0));
        CHECK_FALSE(fit_cost({10, 2}, {20, 2}, 0, 0));
        CHECK_FALSE(fit_cost({10, 2}, {11.05, 2.105}, 0, 0));
        CHECK(fit_cost({18, 2.8}, {20, 3}, 0, 0));
        // Steps that are none.
        CHECK_FALSE(fit_cost({0, 1}, {10, 2}, 0, 0));
        CHECK_FALSE(fit_cost({10, 2}, {0, 1}, 0, 0));
        CHECK_FALSE(fit_cost({kNan, 1}, {10, 2}, 0, 0));
    }

    TEST_CASE("what a step costs is learned from two windows that are of one kind") {
        const auto learn = [](double scatter, double first_s, double last_s, double& fixed,
                              Ewma& speed, bool& changed) {
            const CostProbe probe{{10, 2}, scatter, 0.01, {20, first_s}};
            return learn_cost(probe, {20, last_s}, 0.13, speed, fixed, changed);
        };
        double fixed = 0;
        Ewma speed;
        bool changed = true;
        CHECK(learn(0.01, 3, 3, fixed, speed, changed));
        CHECK(fixed == Approx(10));
        CHECK(speed.mean == Approx(0.1));
        CHECK(speed.deviation == Approx(0.001));
        CHECK(speed.values == 2);
        CHECK_FALSE(changed);
        // A sixth apart: too far but for a rank that scatters by 5 %.
        double other = 0;
        CHECK_FALSE(learn(0.01, 3, 3.6, other, speed, changed));
        CHECK(learn(0.05, 3, 3.6, other, speed, changed));
        // Two windows scatter less than one: 7 % would be too much.
        double third = 0;
        CHECK(learn(0.07, 3, 3, third, speed, changed));
        // No line, but twice as slow: a new regime, which the second of the two windows shows.
        Ewma known;
        for (int i = 0; i < 5; ++i) known.update(0.1, 0.13);
        double none = 0;
        const CostProbe steep{{10, 1}, 0.01, 0.01, {20, 6}};
        CHECK_FALSE(learn_cost(steep, {20, 6}, 0.13, known, none, changed));
        CHECK(changed);
        CHECK(none == 0);
    }

    TEST_CASE("a speed that a rank has had before is no fixed part of its steps") {
        const auto known_at = [](double now, double before) {
            Ewma speed;
            for (int i = 0; i < 5; ++i) speed.update(before, 0.13);
            for (int i = 0; i < 5; ++i) speed.update(now, 0.13);
            return speed;
        };
        // From 20 samples to 10 the sample becomes dearer by a half: a fixed part of 20 samples ...
        const CostProbe probe{{20, 2}, 0.01, 0.01, {10, 1.5}};
        bool changed = false;
        double fixed = 0;
        Ewma first = known_at(0.1, 0.3);
        CHECK(learn_cost(probe, {10, 1.5}, 0.13, first, fixed, changed));
        CHECK(fixed == Approx(20));
        CHECK(first.mean == Approx(0.05));
        CHECK(first.last == first.mean);
        CHECK(first.sound.mean == first.mean);
        CHECK_FALSE(first.former.known);  // it was in other units
        // ... unless it is known to take so long now and then.
        fixed = 0;
        Ewma again = known_at(0.1, 0.15);
        CHECK_FALSE(learn_cost(probe, {10, 1.5}, 0.13, again, fixed, changed));
        CHECK(changed);
        CHECK(fixed == 0);
        CHECK(again.mean == Approx(0.15));
    }

    TEST_CASE("a fixed part that the next change of shares does not show is given up") {
        const auto left_after = [](double samples, double compute_s, double fixed, double scatter) {
            // 20 samples took 2.0 s, 0.05 s each with a fixed part of 20.
            Ewma speed;
            for (int i = 0; i < 5; ++i) speed.update(0.05, 0.13);
            bool changed = true;
            const CostProbe probe{{20, 2}, scatter, 0.01, {samples, compute_s}};
            const bool learned =
                learn_cost(probe, {samples, compute_s}, 0.13, speed, fixed, changed);
            if (learned) CHECK(speed.mean == Approx(compute_s / (samples + fixed)));
            if (learned) CHECK_FALSE(changed);
            return fixed;
        };
        CHECK(left_after(10, 1.0, 20, 0.01) == 0);           // in proportion
        CHECK(left_after(10, 1.5, 20, 0.01) == Approx(20));  // as it foretells
        CHECK(left_after(10, 1.4, 20, 0.01) == Approx(13.333).epsilon(0.001));
        CHECK(left_after(10, 1.0, 20, 0.13) == 20);  // all of that may be noise
        CHECK(left_after(19, 1.9, 20, 0.01) == 20);  // too small a change to see
        CHECK(left_after(10, 1.0, 0, 0.01) == 0);
    }

    TEST_CASE("the largest remainder counts, and of equal ones the first") {
        const double uneven[] = {3.2, 1.8};
        CHECK(whole_units(5, uneven) == Units{3, 2});
        const double even[] = {1, 1};
        CHECK(whole_units(1, even) == Units{1, 0});
        const double caps[] = {3, 10};
        CHECK(fill_under_caps(10, even, caps) == Doubles{3, 7});
        const double whole[] = {1.5, 1.5};
        CHECK(whole_under_caps(3, even, whole) == Doubles{1, 1});
    }

    TEST_CASE("smoothing: weights, sides, and which of two windows a new regime begins with") {
        CHECK(weight_of_half_life(0) == 1);
        CHECK(weight_of_half_life(-1) == 1);
        CHECK(weight_of_half_life(1) == Approx(0.5));
        const auto mean_after = [](double first, double second) {
            Ewma smooth;
            for (int i = 0; i < 50; ++i) smooth.update(i % 2 == 0 ? 0.98 : 1.02, 0.13);
            smooth.update(first, 0.13);
            CHECK(smooth.update(second, 0.13));
            return smooth.mean;
        };
        // Alike: a mean in which the younger one counts three times as much; far apart: that one.
        CHECK(mean_after(2, 2.04) == Approx(0.25 * 2 + 0.75 * 2.04));
        CHECK(mean_after(1.5, 3) == 3);
        CHECK(mean_after(0.5, 0.49) == Approx(0.25 * 0.5 + 0.75 * 0.49));
    }

    TEST_CASE("the noise scale needs norms of a part and of more than that part") {
        CHECK(gradient_noise_scale(14, 6.5, 10, 40).value() == Approx(25));
        CHECK_FALSE(gradient_noise_scale(14, 6.5, 0, 40));
        CHECK_FALSE(gradient_noise_scale(14, 6.5, 10, 10));
        CHECK_FALSE(gradient_noise_scale(kNan, 6.5, 10, 40));
        CHECK_FALSE(gradient_noise_scale(14, 6.5, -1, 40));
        // All noise: without a signal there is no scale of it.
        CHECK_FALSE(gradient_noise_scale(4, 1, 10, 40));
        CHECK_FALSE(gradient_noise_scale(6, 7, 10, 40));  // the mean larger than the part
    }

    TEST_CASE("the variation is the standard deviation over the mean") {
        // Mean 2, deviations of 1.
        const double times[] = {1, 3};
        CHECK(imbalance_of(times)->variation == Approx(0.5));
        CHECK(imbalance_of(times)->index == Approx(1.0 / 3));
        const double four[] = {1, 1, 3, 3};
        CHECK(imbalance_of(four)->variation == Approx(0.5));
    }

    TEST_CASE("shares need every input, and only those that both lists have are compared") {
        const double speeds[] = {1, 1};
        const double fixed[] = {0, kNan};
        CHECK_FALSE(balanced_shares(speeds, fixed, 0));
        CHECK_FALSE(balanced_shares(speeds, speeds, kNan));
        const double three[] = {0.5, 0.25, 0.25};
        const double two[] = {0.25, 0.75};
        CHECK(moved_part(three, two) == Approx(0.375));
    }

    TEST_CASE("urgency halves after tau, and equal items come by their number") {
        PriorityWeights weights;
        weights.tau_s = 4;
        CHECK(priority_of({1, 4, 100}, 100, weights).value() == Approx(0.35));
        CHECK(priority_of({1, 1, 100}, 100, weights).value() == Approx(0.7 * 0.8));
    }

    TEST_CASE("a placement with one unusable number is none") {
        const auto corrupt = [](const auto& change) {
            PlacementInput input = two_nodes();
            change(input);
            return !place_items(input, {}).has_value();
        };
        CHECK_FALSE(corrupt([](PlacementInput&) {}));
        CHECK(corrupt([](PlacementInput& input) { input.bandwidth.pop_back(); }));
        CHECK(corrupt([](PlacementInput& input) { input.bandwidth[0] = kNan; }));
        CHECK(corrupt([](PlacementInput& input) { input.nodes[0].speed = kNan; }));
        CHECK(corrupt([](PlacementInput& input) { input.nodes[0].free_bytes = -1; }));
        CHECK(corrupt([](PlacementInput& input) { input.items[0].bytes = kNan; }));
        CHECK(corrupt([](PlacementInput& input) { input.items[0].reads[0] = kNan; }));
        CHECK(corrupt([](PlacementInput& input) { input.items[0].home = 2; }));
        CHECK(corrupt([](PlacementInput& input) { input.items[0].reads.pop_back(); }));
        CHECK_FALSE(place_items(two_nodes(), {kNan, 0, 4}));
    }

    TEST_CASE("an item moves only for more than it costs, and for a part of the reading time") {
        // 6 s of reading within 60 s, 0.1 s to copy.
        CHECK(place_items(two_nodes(), {1, 0, 4})->empty());  // saves 0.1 s, which it costs
        CHECK(place_items(two_nodes(), {1.01, 0, 4})->size() == 1);
        // All of the reading time is saved: a whole of it is not more than that.
        CHECK(place_items(two_nodes(), {60, 0, 4, 1})->empty());
        CHECK(place_items(two_nodes(), {60, 0, 4, 0.9})->size() == 1);
        auto input = two_nodes();
        input.items[0].reads = {4e7, 1e8};
        // 4/10 of it begins again: 6 s less 2.4 s.
        CHECK(place_items(input, {60, 0, 4, 0.55})->size() == 1);
        CHECK(place_items(input, {60, 0, 4, 0.65})->empty());
        input = two_nodes();
        input.bandwidth = {0, 0, 0, 0};
        CHECK(place_items(input, {})->empty());  // no way is known
        // A way that is known in one direction counts in both, where it is read.
        input.bandwidth = {0, 1e9, 0, 0};
        CHECK(place_items(input, {})->at(0).gain_s == Approx(6));
    }

    TEST_CASE(
        "the node with the least remote reading per speed gets an item, of equal ones its home") {
        PlacementInput input;
        input.nodes = {{100, 1e9}, {10, 1e9}, {100, 1e9}};
        input.bandwidth = Doubles(9, 1e9);
        // Node 0 has 2e8 / 100 to read from elsewhere, node 1 1.2e8 / 10, node 2 1.8e8 / 100.
        input.items = {{7, 1e6, 0, {5e7, 1.3e8, 7e7}}};
        CHECK(place_items(input, {})->at(0).to == 2);
        // A dead home: any other, and dead nodes get nothing.
        input.items[0].reads = {0, 0, 1e8};
        input.nodes[0].speed = 0;
        CHECK(place_items(input, {})->at(0).to == 2);
        input.nodes[2].speed = 0;
        CHECK(place_items(input, {})->empty());  // node 1 would gain nothing
        input.nodes = {{100, 0}, {100, 1e9}, {100, 1e9}};
        input.items[0].reads = {0, 5e7, 5e7};
        CHECK(place_items(input, {})->at(0).to == 1);
    }

    TEST_CASE("resources and reassignments need all of their inputs") {
        const double speeds[] = {2, 1};
        const double none[] = {0, 0};
        CHECK_FALSE(resource_strategy(speeds, none, 1, {kNan, 1}));
        CHECK_FALSE(resource_strategy(speeds, none, 1, {1, kNan}));
        CHECK_FALSE(resource_strategy(none, none, 1, {}));
        CHECK_FALSE(resource_strategy(speeds, none, kNan, {}));
        const std::uint64_t tasks[] = {8, 8};
        const double bad[] = {1, kNan};
        const double one[] = {1};
        CHECK_FALSE(reassign_tasks(tasks, bad, speeds, 0));
        CHECK_FALSE(reassign_tasks(tasks, speeds, bad, 0));
        CHECK_FALSE(reassign_tasks(tasks, speeds, speeds, kNan));
        CHECK_FALSE(reassign_tasks(tasks, one, speeds, 0));
        CHECK_FALSE(reassign_tasks(tasks, speeds, one, 0));
        CHECK_FALSE(reassign_tasks({}, {}, {}, 0));
        // 16 s for 8 tasks of 2 s; as 4 and 12 it would be 12 s: a quarter less is no more than
        // that.
        const double times[] = {2, 1};
        const double quarter[] = {1, 3};
        CHECK(reassign_tasks(tasks, quarter, times, 0.25)->tasks == Units{8, 8});
        CHECK(reassign_tasks(tasks, quarter, times, 0.24)->tasks == Units{4, 12});
    }

    TEST_CASE(
        "a task goes to the node that would end first with one more, of equal ones the first") {
        // Parts of 7: 3.5, 1.75, 1.75. Largest remainders: 3, 2, 2, and the first one could have 4.
        const std::uint64_t tasks[] = {7, 0, 0};
        const double parts[] = {2, 1, 1};
        const double slow[] = {1, 1, 3};
        CHECK(reassign_tasks(tasks, parts, slow, 0)->tasks == Units{4, 2, 1});
        CHECK(reassign_tasks(tasks, parts, slow, 0)->after_s == 4);
        // The last one is so slow that the first has to be passed over for the faster second.
        const std::uint64_t ten[] = {10, 0, 0};
        const double thirds[] = {1.3, 1.3, 1.4};
        const double times[] = {2, 1, 3};  // parts 3.25, 3.25, 3.5: 3, 3, 4
        CHECK(reassign_tasks(ten, thirds, times, 0)->tasks == Units{3, 4, 3});
        const double alike[] = {1, 1, 3};
        CHECK(reassign_tasks(ten, thirds, alike, 0)->tasks == Units{4, 3, 3});
        // As long there as here: it stays.
        const std::uint64_t five[] = {5, 0};
        const double halves[] = {1, 1};
        CHECK(reassign_tasks(five, halves, halves, 0)->tasks == Units{3, 2});
        CHECK(reassign_tasks(five, halves, halves, 0)->rounds == 0);
    }

    TEST_CASE("vGPUs, ratios and allocations need all of their inputs") {
        const VgpuReading readings[] = {{1e9, 1e8, 0, 1, 0, 0}};
        VgpuWeights weights;
        weights.filled = 0;
        CHECK_FALSE(vgpu_demands(readings, weights));
        weights = {};
        weights.delay = kNan;
        CHECK_FALSE(vgpu_demands(readings, weights));
        const AllocationNode good{8, 2, 3, 100};
        for (double AllocationNode::*field :
             {&AllocationNode::data_demand, &AllocationNode::priority,
              &AllocationNode::compute_demand, &AllocationNode::free_bytes}) {
            AllocationNode bad = good;
            bad.*field = kNan;
            const AllocationNode nodes[] = {good, bad};
            CHECK_FALSE(allocation_ratio(nodes, 10));
        }
        const AllocationNode nodes[] = {good, {1, 1, 1, 100}};
        CHECK_FALSE(allocation_ratio(nodes, kNan));
        // Each over its largest: 1 against the cube root of 1/8 * 1/2 * 1/3.
        const double other = std::cbrt(1.0 / 48);
        CHECK(allocation_ratio(nodes, 10)->at(0) == Approx(1 / (1 + other)));
        // A quantity that no node has makes no difference.
        const AllocationNode idle[] = {{8, 0, 1, 100}, {1, 0, 1, 100}};
        CHECK(allocation_ratio(idle, 10)->at(0) == Approx(2.0 / 3));
        const TaskDemand tasks[] = {{1, 1, 0, 0, 10}, {1, 1, 0, 0, 10}};
        CHECK(allocate_tasks(tasks, 10, 1).value() == Units{5, 5});
        CHECK_FALSE(allocate_tasks(tasks, 10, 1.1));
        CHECK_FALSE(allocate_tasks(tasks, 10, kNan));
        // Less than one for each: none has a floor.
        const TaskDemand three[] = {{0, 1, 0, 0, 0}, {0, 1, 0, 0, 0}, {1, 1, 0, 0, 10}};
        CHECK(allocate_tasks(three, 2, 1).value() == Units{0, 0, 2});
    }

    TEST_CASE("a tenant asks for what it misses, in steps") {
        constexpr double kMiB = 1024 * 1024;
        ControlConfig config;
        QuotaWindow user;
        user.quota = 64 * kMiB;
        user.used = 64 * kMiB;
        user.denied = 100 * kMiB;
        CHECK(holder_of(user, config).asks == 16 * kMiB);  // a quarter of its quota
        user.quota = user.used = 1 * kMiB;
        CHECK(holder_of(user, config).asks == 2 * kMiB);  // which would be next to nothing
        CHECK(holder_of(user, config).promised == 1 * kMiB);
        // Below its promise 5 % of the quota have to be missing, beyond it a refusal.
        user.quota = 100;
        user.promised = 200;
        user.denied = 0;
        config.gain = 0.0625;  // which has no rounding
        CHECK(asks_of(user, 6.25, config) == 0);
        CHECK(asks_of(user, 6.5, config) == 6.5);
        user.denied = 1;
        CHECK(asks_of(user, 1, config) == 1);
        CHECK(asks_of(user, 0.5, config) == 0);
        Holder holder;
        holder.held = 100;
        holder.promised = 200.5;
        const Holder holders[] = {holder};
        CHECK_FALSE(is_worth_returning(holders, {100}, 0));
        CHECK_FALSE(is_worth_returning(holders, {110}, 0.1));
        CHECK(is_worth_returning(holders, {111}, 0.1));
        CHECK(is_worth_returning(holders, {200}, 5));  // all that it was promised, in whole units
        holder.held = 200.5;
        const Holder full[] = {holder};
        CHECK_FALSE(is_worth_returning(full, {200.5}, 0));  // has all of it, and gets nothing
        Quota quota;
        add_change(quota.changes, "more", 1, 2);
        add_change(quota.changes, "less", 2, 1);
        add_change(quota.changes, "same", 2, 2);
        Decision decision;
        decision.action = quota;
        CHECK(names_of(decision) == std::vector<std::string>{"less", "more", "same"});
        const auto back = as_return(decision).value();
        CHECK(back.reason == "more needs what it was promised");
        quota.changes.erase(quota.changes.begin() + 1);
        decision.action = quota;  // nothing becomes more
        CHECK_FALSE(as_return(decision));
    }

    TEST_CASE("a promise is what it was first, until it is set from outside; use is its largest") {
        Promises promises;
        std::vector<QuotaWindow> users(1);
        users[0].name = "a";
        users[0].quota = 50;
        users[0].usage = 0.8;
        promises.complete(users, 1);
        CHECK(users[0].promised == 50);
        users[0].promised = 0;
        users[0].usage = 0.1;
        promises.complete(users, 1);
        CHECK(users[0].usage == Approx(0.4));
        users[0].usage = 0.1;
        promises.complete(users, 0);  // no memory at all
        CHECK(users[0].usage == Approx(0.1));
        // Compute time is known from the first percentage on.
        CHECK(users[0].promised_percent == 0);
        users[0].percent = 30;
        promises.complete(users, 1);
        CHECK(users[0].promised_percent == 30);
        users[0].promised_percent = 0;
        users[0].percent = 0;  // not measured now: no order
        promises.complete(users, 1);
        users[0].percent = 30;
        promises.complete(users, 1);
        CHECK(users[0].promised_percent == 30);
        users[0].percent = 40;
        promises.complete(users, 1);
        CHECK(users[0].promised_percent == 40);
    }

    TEST_CASE("a shard rests after a move, and ever longer after refusals in a row") {
        const ControlConfig config;
        ShardWatch watch;
        CHECK(looks_until_ready(watch, one_shard(0)) == 3);
        CHECK(looks_until_ready(watch, one_shard(1)) == config.cool_down + 1);
        CHECK(looks_until_ready(watch, one_shard(1)) == 1);
        watch.update(one_shard(1, true), config, 0.1);
        CHECK(looks_until_ready(watch, one_shard(1)) == config.cool_down);
        CHECK(watch.without_refused(one_shard(1)).shards.size() == 1);
        std::int64_t rest = config.cool_down;
        for (int i = 0; i < 7; ++i) {
            watch.refuse("job/s", config.cool_down);
            CHECK(looks_until_ready(watch, one_shard(1)) == rest + 1);
            rest = std::min(2 * rest, 16 * config.cool_down);
        }
        CHECK(watch.without_refused(one_shard(1)).shards.empty());
        looks_until_ready(watch, one_shard(0));  // it was moved: that counts again
        CHECK(watch.without_refused(one_shard(0)).shards.size() == 1);
        watch.refuse("job/s", 0);
        CHECK(looks_until_ready(watch, one_shard(0)) == 2);
        PlacementWindow stranger = one_shard(0);
        stranger.shards[0].name = "job/t";
        CHECK(watch.without_refused(stranger).shards.size() == 1);
    }

    TEST_CASE("windows: ranks in their order, counters that stand still, faults by device") {
        Sample sample;
        sample.number = 1;
        sample.taken_ns = 1;
        for (const int rank : {1, 0}) {
            SessionSample session{};
            session.session_id = static_cast<std::uint64_t>(5 - rank);
            session.page_number = 1;
            session.member = true;
            session.device = rank == 0 ? "npu0" : "npu1";
            session.image = fabricshm::empty_telemetry();
            session.image.group_id = 2;
            session.image.rank = rank;
            session.image.world = 2;
            session.image.steps = 10;
            session.image.samples = 100;
            session.image.compute_ns = session.image.step_ns = 5;
            sample.sessions.push_back(session);
        }
        WindowMaker maker;
        CHECK(maker.next(sample).jobs[0].is_whole());
        sample.taken_ns += 1;
        sample.sessions[0].image.steps += 4;
        sample.sessions[1].image.memory_denied += 7;
        sample.faulty = {{"npu9", 1}, {"npu1", 4}};
        const Window window = maker.next(sample);
        REQUIRE(window.jobs[0].is_whole());
        CHECK(window.jobs[0].ranks[1].steps == 4);  // of no samples
        CHECK(window.jobs[0].ranks[0].steps == 0);
        CHECK(window.jobs[0].ranks[0].memory_denied == 7);
        CHECK(window.jobs[0].ranks[1].faults == 4);
        CHECK(window.jobs[0].ranks[0].faults == 0);
    }

    TEST_CASE("a page holds 256 ranks and 32 bits of units") {
        Directive directive;
        const auto most = static_cast<std::size_t>(fabricshm::kPeersMax);
        directive.sessions.assign(most, 1);
        directive.shares.assign(most, 0.5);
        directive.units.assign(most, 2);
        directive.units[1] = 4294967295.0;
        directive.units[2] = 0;
        CHECK(image_of(directive)->work_units[1] == 4294967295U);
        CHECK(image_of(directive)->batch_share[most - 1] == 0.5);
        for (const double units : {-1.0, 4294967296.0, kNan}) {
            directive.units[1] = units;
            CHECK(image_of(directive).error().code == fabricshm::Errc::kInvalid);
        }
        directive.units.assign(most + 1, 1);
        CHECK(image_of(directive).error().code == fabricshm::Errc::kUnsupported);
        directive.units.clear();
        directive.shares.assign(most + 1, 0);
        CHECK_FALSE(image_of(directive).ok());
    }

    TEST_CASE("decisions of a replay are the same but for printing") {
        const auto same = [](double then, double now) {
            const std::vector<Decision> old = {decision_in(3, then)};
            const std::vector<Decision> fresh = {decision_in(3, now)};
            const auto found = compare(old, fresh);
            REQUIRE(found.size() == 1);
            return found[0].same_values;
        };
        CHECK(same(0.25, 0.25));
        CHECK(same(1e12, 1e12 + 500));
        CHECK_FALSE(same(1e12, 1e12 + 2000));
        CHECK_FALSE(same(0.25, 0.2500001));
        CHECK(same(1e-3, 1e-3 + 5e-10));
        CHECK(same(0, 1e-9));  // at the limit, which is absolute below 1
        std::vector<Decision> old = {decision_in(3, 1), decision_in(5, 1)};
        std::vector<Decision> fresh = {decision_in(3, 1), decision_in(4, 1)};
        action_as<UnknownAction>(fresh[0])->frame.after.push_back(2);
        const auto found = compare(old, fresh);
        REQUIRE(found.size() == 3);
        CHECK_FALSE(found[0].same_values);
        CHECK(found[1].side == ReplayDifference::Side::kOnlyNow);
        CHECK(found[2].side == ReplayDifference::Side::kOnlyThen);
        fresh = {decision_in(3, 1)};
        action_as<UnknownAction>(fresh[0])->frame.names = {"b"};
        CHECK_FALSE(compare({old[0]}, fresh)[0].same_values);
    }

    TEST_CASE("the metrics have each kind and each outcome that there can be, once") {
        LoopCounters counters;
        counters.decisions.fill(7);
        counters.outcomes.fill(7);
        const std::string text = control_metrics(counters);
        const auto lines_with = [&](const std::string& part) {
            std::size_t found = 0;
            for (std::size_t at = text.find(part); at != std::string::npos;
                 at = text.find(part, at + 1)) {
                ++found;
            }
            return found;
        };
        CHECK(lines_with("decisions_total{kind=\"") == kActionKinds - 1);
        CHECK(lines_with("outcomes_total{outcome=\"") == counters.outcomes.size() - 1);
        CHECK(lines_with("unknown") == 0);
        CHECK(lines_with("on_probation") == 0);
        CHECK(lines_with("kind=\"batch_shares\"} 7\n") == 1);
    }

    TEST_CASE("two steps as far apart as their scatter allows are of one regime") {
        CostProbe probe;
        probe.before = {20, 15};
        probe.first = {10, 12.5};
        probe.scatter = 0.0625;  // a quarter apart is four of it
        Ewma sample_s;
        double fixed_samples = 0;
        bool changed = false;
        CHECK(learn_cost(probe, {10, 10}, 0.1, sample_s, fixed_samples, changed));
        // 11.25 s for 10 and 15 s for 20: 0.375 s each, and 7.5 s besides.
        CHECK(fixed_samples == Approx(20));
    }

    TEST_CASE("resources are none where all stand still or a step takes for ever") {
        const Doubles still = {0, 0}, speeds = {1, 2}, responses = {0, 0};
        CHECK_FALSE(resource_strategy(still, responses, 1, {0, 1}));
        CHECK_FALSE(resource_strategy(speeds, responses, kInfinity, {1, 1}));
        CHECK(resource_strategy(speeds, responses, 1, {0, 1}));
    }

    TEST_CASE("a way that was measured in the other direction only counts like that one") {
        PlacementInput input;
        input.nodes = {{100, 0}, {100, 1e9}, {100, 1e9}};
        input.bandwidth = {0, 1e9, 0, 1e9, 0, 1e9, 1e9, 1e9, 0};
        input.items = {{7, 1e6, 0, {0, 1e8, 1e8}}};
        // 0.2 s in a second from home, of which half is spared.
        const auto moves = place_items(input, {});
        REQUIRE(moves);
        CHECK(moves->size() == 1);
    }

    TEST_CASE("devices that ask share what one lends by the cube root of what they want") {
        ControlConfig config;
        config.quota_step = 1;
        PoolWindow pool;
        pool.devices = {
            {"a", 1e8, 1e8, 3e8, 10}, {"b", 1e8, 1e8, 5e7, 10}, {"c", 3e8, 2.5e8, 0, 10}};
        pool.most = {1e9, 1e9, 1e9};
        const auto decision = propose_pool_quotas(pool, config);
        REQUIRE(decision);
        REQUIRE(names_of(*decision) == std::vector<std::string>{"c", "a", "b"});
        const double to_a = after_of(*decision)[1] - 1e8, to_b = after_of(*decision)[2] - 1e8;
        CHECK(to_a + to_b == Approx(3e8 - 2.5e8 / 0.85).epsilon(1e-6));
        CHECK(to_a / to_b == Approx(std::cbrt(400.0 / 150)).epsilon(1e-6));
    }

    TEST_CASE("a half-life of nothing forgets at once, and many sessions make one window") {
        CHECK(weight_of_half_life(0) == 1);
        CHECK(weight_of_half_life(-0.0) == 1);
        WindowMaker maker;
        Sample sample;
        sample.sessions.resize(40);
        for (std::size_t i = 0; i < sample.sessions.size(); ++i) {
            sample.sessions[i].session_id = i + 1;
        }
        CHECK(maker.next(sample).jobs.empty());
    }
}

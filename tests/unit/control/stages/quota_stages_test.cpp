// S312 to S422.

#include <doctest/doctest.h>

#include <numeric>

#include "fabricd/control/stages/allocation.hpp"
#include "fabricd/control/stages/allocation_ratio.hpp"
#include "fabricd/control/stages/numbers.hpp"
#include "fabricd/control/stages/sync_interval.hpp"
#include "fabricd/control/stages/vgpu.hpp"
#include "tests/unit/control/adversarial.hpp"

using namespace fabricd;
using namespace control_test;

namespace {

VgpuReading random_vgpu(Numbers& numbers) {
    VgpuReading reading;
    reading.quota = numbers.plausible();
    reading.used = reading.quota * numbers.uniform();
    reading.denied = numbers.below(2) == 0 ? 0 : numbers.plausible();
    reading.speed = 2 * numbers.uniform();
    reading.delay = numbers.uniform();
    reading.busy = numbers.uniform();
    return reading;
}

}  // namespace

TEST_SUITE("control.stages.quota_stages") {
    TEST_CASE("the interval keeps synchronising within its share of the time") {
        // 50 steps/s without synchronising, which takes 6 ms: 0.3 steps, so every third step.
        const double kappa = update_speed(50, 0.006, {}).value();
        CHECK(kappa == doctest::Approx(0.3));
        CHECK(sync_interval(kappa, 1, false, {}) == 3);
        CHECK(sync_interval(0, 5, false, {}) == 1);
        CHECK(sync_interval(1e9, 5, false, {}) == 16);
    }

    TEST_CASE("the interval halves at once while the loss gets worse") {
        CHECK(sync_interval(100, 16, true, {}) == 8);
        CHECK(sync_interval(100, 3, true, {}) == 1);
        CHECK(sync_interval(100, 1, true, {}) == 1);
    }

    TEST_CASE("the interval stays within its bounds and rises with the cost of synchronising") {
        Numbers numbers(1);
        for (int i = 0; i < kRounds; ++i) {
            SyncWeights weights;
            weights.share = numbers.adversarial();
            weights.interval_max = static_cast<std::uint32_t>(numbers.below(100));
            const auto now = static_cast<std::uint32_t>(numbers.below(200));
            const double kappa = numbers.adversarial();
            const auto interval = sync_interval(kappa, now, numbers.below(2) == 0, weights);
            CHECK(interval >= 1);
            CHECK(interval <= std::max(weights.interval_max, 1U));
            if (usable(kappa * 2)) {
                CHECK(sync_interval(kappa * 2, now, false, weights) >=
                      sync_interval(kappa, now, false, weights));
            }
            const auto any =
                update_speed(numbers.adversarial(), numbers.adversarial(), {1, 1, 0.1, 16});
            CHECK((!any || usable(*any)));
        }
    }

    TEST_CASE("a vGPU that was refused memory would grow by a step, an idle one shrink by one") {
        const VgpuReading readings[] = {{1e9, 1e9, 5e9, 1, 0, 0}, {1e9, 0, 0, 1, 0, 0}};
        const auto demands = vgpu_demands(readings, {}).value();
        CHECK(demands[0] == doctest::Approx(1.25e9));
        CHECK(demands[1] == doctest::Approx(0.75e9));
    }

    TEST_CASE("a quota that is filled just right stays") {
        const VgpuReading readings[] = {{1e9, 0.85e9, 0, 1, 0, 0}};
        CHECK(vgpu_demands(readings, {})->front() == doctest::Approx(1e9));
        // Late and disturbed nodes make less of memory.
        const VgpuReading late[] = {{1e9, 0.85e9, 0, 1, 0.4, 0.4}};
        CHECK(vgpu_demands(late, {})->front() == doctest::Approx(0.85e9).epsilon(0.0001));
        const VgpuReading each[] = {{1e9, 0.8e9, 0, 1, 0.2, 0}, {1e9, 0.8e9, 0, 1, 0, 0.4}};
        CHECK(vgpu_demands(each, {})->at(0) == doctest::Approx(0.8e9 / 0.85 / 1.05));
        CHECK(vgpu_demands(each, {})->at(1) == doctest::Approx(0.8e9 / 0.85 / 1.1));
        const VgpuReading slow[] = {{1e9, 0.5e9, 0.5e9, 0.81, 0, 0}};
        CHECK(vgpu_demands(slow, {})->front() == doctest::Approx(1e9 / 0.85 * 0.9));
    }

    TEST_CASE("a demand is never below live use, and at most a step from the quota") {
        Numbers numbers(2);
        for (int i = 0; i < kRounds; ++i) {
            std::vector<VgpuReading> readings(numbers.below(7));
            for (auto& reading : readings) reading = random_vgpu(numbers);
            const VgpuWeights weights;
            const auto demands = vgpu_demands(readings, weights).value();
            for (std::size_t k = 0; k < demands.size(); ++k) {
                const double step = std::max(0.25 * readings[k].quota, weights.unit);
                CHECK(demands[k] >= readings[k].used);
                CHECK(demands[k] >= readings[k].quota - step);
                CHECK(demands[k] <= readings[k].quota + step);
            }
        }
    }

    TEST_CASE("more demand never means less quota") {
        Numbers numbers(3);
        for (int i = 0; i < kRounds; ++i) {
            std::vector<VgpuReading> readings = {random_vgpu(numbers)};
            const double before = vgpu_demands(readings, {})->front();
            readings[0].denied += numbers.plausible();
            CHECK(vgpu_demands(readings, {})->front() >= before);
        }
    }

    TEST_CASE("demands survive any input") {
        Numbers numbers(4);
        for (int i = 0; i < kRounds; ++i) {
            std::vector<VgpuReading> readings(numbers.below(5));
            for (auto& reading : readings) {
                reading = {numbers.adversarial(), numbers.adversarial(), numbers.adversarial(),
                           numbers.adversarial(), numbers.adversarial(), numbers.adversarial()};
            }
            const auto any = vgpu_demands(readings, {});
            CHECK((!any || all_finite(*any)));
        }
    }

    TEST_CASE("the allocation follows demand until the memory ends") {
        const AllocationNode nodes[] = {{8, 1, 1, 1000}, {1, 1, 1, 1000}};
        const auto free = allocation_ratio(nodes, 100).value();
        CHECK(free[0] == doctest::Approx(2.0 / 3));
        // Room for a quarter of it: the rest goes to the other.
        const AllocationNode small[] = {{8, 1, 1, 25}, {1, 1, 1, 1000}};
        const auto capped = allocation_ratio(small, 100).value();
        CHECK(capped[0] == doctest::Approx(0.25));
        CHECK(capped[1] == doctest::Approx(0.75));
        // All of the memory is to be given out: then only the memory can decide.
        CHECK(allocation_ratio(small, 0).value()[0] == doctest::Approx(25.0 / 1025));
    }

    TEST_CASE("the ratio sums to 1 as far as there is memory, and no node gets more than it has") {
        Numbers numbers(5);
        for (int i = 0; i < kRounds; ++i) {
            std::vector<AllocationNode> nodes(numbers.below(6));
            for (auto& node : nodes) {
                node = {numbers.plausible(), numbers.plausible(), numbers.plausible(),
                        numbers.plausible()};
            }
            double memory = 0;
            for (const auto& node : nodes) memory += node.free_bytes;
            const double bytes = numbers.plausible();
            const auto ratio = allocation_ratio(nodes, bytes);
            if (memory == 0) {
                CHECK_FALSE(ratio);
                continue;
            }
            const double whole = bytes > 0 ? bytes : memory;
            CHECK(sum(*ratio) == doctest::Approx(std::min(1.0, memory / whole)));
            for (std::size_t k = 0; k < nodes.size(); ++k) {
                CHECK((*ratio)[k] * whole <= nodes[k].free_bytes * (1 + 1e-9));
            }
        }
        for (int i = 0; i < kRounds; ++i) {
            std::vector<AllocationNode> nodes(numbers.below(6));
            for (auto& node : nodes) {
                node = {numbers.adversarial(), numbers.adversarial(), numbers.adversarial(),
                        numbers.adversarial()};
            }
            const auto any = allocation_ratio(nodes, numbers.adversarial());
            CHECK((!any || usable(*any)));
        }
    }

    TEST_CASE("an allocation gives everybody its promise first, and what is left by weight") {
        using Parts = std::vector<std::uint64_t>;
        // Usage, priority, delay, promised, needs: 40 are left for those that need more.
        const TaskDemand tasks[] = {{30, 1, 0, 20, 100}, {20, 1, 0, 20, 100}, {0, 1, 0, 60, 20}};
        CHECK(allocate_tasks(tasks, 100, 0.1).value() == Parts{44, 36, 20});
        // Priority counts, and waiting for others counts against it.
        const TaskDemand weighed[] = {{10, 2, 0, 0, 100}, {10, 1, 0, 0, 100}, {10, 2, 1, 0, 100}};
        CHECK(allocate_tasks(weighed, 100, 0).value() == Parts{50, 25, 25});
        // A task that uses nothing keeps a tenth of the even part, so that it can begin again.
        const TaskDemand idle[] = {{1, 1, 0, 50, 100}, {0, 1, 0, 50, 0}};
        CHECK(allocate_tasks(idle, 100, 0.1).value() == Parts{95, 5});
        // No task gets more than it needs: the rest goes home.
        const TaskDemand modest[] = {{1, 1, 0, 30, 40}, {0, 1, 0, 70, 0}};
        CHECK(allocate_tasks(modest, 100, 0.1).value() == Parts{40, 60});
        const TaskDemand content[] = {{1, 1, 0, 30, 10}, {1, 1, 0, 70, 10}};
        CHECK(allocate_tasks(content, 100, 0.1).value() == Parts{30, 70});
    }

    TEST_CASE("the quanta are all given out, and everybody has the floor and its promise") {
        Numbers numbers(6);
        for (int i = 0; i < kRounds; ++i) {
            std::vector<TaskDemand> tasks(1 + numbers.below(9));
            const std::uint64_t total = numbers.below(1000);
            const auto count = static_cast<double>(tasks.size());
            const auto all = static_cast<double>(total);
            const bool is_sound = numbers.below(4) != 0;
            for (auto& task : tasks) {
                task = {numbers.adversarial(), numbers.adversarial(), numbers.adversarial(),
                        numbers.adversarial(), numbers.adversarial()};
                if (!is_sound) continue;
                task = {numbers.plausible(), numbers.plausible(), 0, std::floor(0.9 * all / count),
                        2 * all * numbers.uniform()};
            }
            const auto parts = allocate_tasks(tasks, total, 0.1);
            if (!parts) continue;
            CHECK(std::accumulate(parts->begin(), parts->end(), std::uint64_t{0}) == total);
            for (std::size_t k = 0; k < tasks.size(); ++k) {
                const auto part = static_cast<double>((*parts)[k]);
                CHECK(part >= std::min(0.1 * all / count, std::floor(all / count)));
                if (is_sound && 0.1 * all / count < 1) continue;
                if (is_sound) CHECK(part >= std::min(tasks[k].promised, tasks[k].needs) - 1);
            }
        }
    }
}

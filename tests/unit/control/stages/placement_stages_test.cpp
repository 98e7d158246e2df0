// S212 to S223.

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "fabricd/control/stages/numbers.hpp"
#include "fabricd/control/stages/placement.hpp"
#include "fabricd/control/stages/priority.hpp"
#include "fabricd/control/stages/reassignment.hpp"
#include "fabricd/control/stages/resources.hpp"
#include "tests/unit/control/adversarial.hpp"

using namespace fabricd;
using namespace control_test;

namespace {

/// Two nodes with a way of 1 GB/s between them; node 1 reads 100 MB/s of an item that node 0 has.
PlacementInput two_nodes() {
    PlacementInput input;
    input.nodes = {{100, 0}, {100, 1e9}};
    input.bandwidth = {0, 1e9, 1e9, 0};
    input.items = {{7, 1e8, 0, {0, 1e8}}};
    return input;
}

PlacementInput random_input(Numbers& numbers, double (Numbers::*draw)()) {
    PlacementInput input;
    const std::size_t nodes = 1 + numbers.below(5);
    for (std::size_t i = 0; i < nodes; ++i) {
        input.nodes.push_back({(numbers.*draw)(), (numbers.*draw)()});
    }
    input.bandwidth = numbers.several(nodes * nodes, draw);
    for (std::size_t i = numbers.below(6); i > 0; --i) {
        input.items.push_back(
            {i, (numbers.*draw)(), numbers.below(nodes), numbers.several(nodes, draw)});
    }
    return input;
}

}  // namespace

TEST_SUITE("control.stages.placement_stages") {
    TEST_CASE("sooner needed goes first, then the smaller one, or the larger one if so wanted") {
        const PriorityItem items[] = {{1, 10, 100}, {2, 0, 100}, {3, 0, 10}};
        CHECK(priority_list(items, {}) == std::vector<std::size_t>{2, 1, 0});
        PriorityWeights weights;
        weights.large_first = true;
        CHECK(priority_list(items, weights) == std::vector<std::size_t>{1, 2, 0});
        CHECK(priority_of({1, 0, 0}, 100, {}).value() == doctest::Approx(1));
        CHECK(priority_of({1, 1, 100}, 100, {}).value() == doctest::Approx(0.35));
    }

    TEST_CASE("priorities lie between 0 and 1 and fall with the time until needed") {
        Numbers numbers(2);
        for (int i = 0; i < kRounds; ++i) {
            const PriorityWeights weights{numbers.adversarial(), numbers.adversarial(),
                                          numbers.adversarial(), numbers.below(2) == 0};
            const PriorityItem item{1, numbers.adversarial(), numbers.adversarial()};
            const double largest = numbers.adversarial();
            const auto any = priority_of(item, largest, weights);
            if (!any) continue;
            CHECK(*any >= 0);
            CHECK(*any <= 1);
            const auto later =
                priority_of({1, item.until_needed_s * 2 + 1, item.bytes}, largest, weights);
            CHECK((!later || *later <= *any));
        }
    }

    TEST_CASE("the order of priorities does not depend on the order of the items") {
        std::vector<PriorityItem> items = {{3, 1, 5}, {1, 1, 5}, {2, 1, 5}};
        const auto order = priority_list(items, {});
        CHECK(items[order[0]].id == 1);
        CHECK(items[order[2]].id == 3);
    }

    TEST_CASE("an item moves to its reader, once that is worth the copying") {
        auto input = two_nodes();
        const auto moves = place_items(input, {}).value();
        REQUIRE(moves.size() == 1);
        CHECK(moves[0].item == 7);
        CHECK(moves[0].to == 1);
        CHECK(moves[0].cost_s == doctest::Approx(0.1));
        CHECK(moves[0].gain_s == doctest::Approx(6));
        // Too short a time to earn the copying back, or no memory there.
        CHECK(place_items(input, {1.04, 0.05, 4})->empty());
        CHECK(place_items(input, {1.06, 0.05, 4})->size() == 1);
        input.nodes[1].free_bytes = 1e8 - 1;
        CHECK(place_items(input, {})->empty());
    }

    TEST_CASE("memory that an item takes is gone for the next, what it leaves is not there yet") {
        auto input = two_nodes();
        input.nodes[1].free_bytes = 1.5e8;
        input.items.push_back({8, 1e8, 0, {0, 1e8}});
        CHECK(place_items(input, {})->size() == 1);
        // An item of node 1 that only node 0 reads will make room there, but not before it is gone,
        // and finds none where 7 still is.
        input.items.insert(input.items.begin() + 1, {9, 1e8, 1, {1e8, 0}});
        CHECK(place_items(input, {})->size() == 1);
        input.nodes[0].free_bytes = 1e8;
        const auto moves = place_items(input, {}).value();
        REQUIRE(moves.size() == 2);
        CHECK(moves[1].item == 9);
    }

    TEST_CASE("a placement never fills a node beyond its memory, and never moves at a loss") {
        Numbers numbers(3);
        for (int i = 0; i < kRounds; ++i) {
            (void)place_items(random_input(numbers, &Numbers::adversarial), {});
            const auto input = random_input(numbers, &Numbers::plausible);
            const auto moves = place_items(input, {60, 0.05, 4});
            REQUIRE(moves);
            CHECK(moves->size() <= 4);
            std::vector<double> free;
            for (const auto& node : input.nodes) free.push_back(node.free_bytes);
            for (const Migration& move : *moves) {
                CHECK(move.from != move.to);
                CHECK(move.gain_s > move.cost_s * 1.05);
                free[move.to] -= move.bytes;
                CHECK(free[move.to] >= 0);
            }
        }
    }

    TEST_CASE("resources rise with capability and fall with response time") {
        const double speeds[] = {100, 50, 100};
        const double responses[] = {1, 1, 3};
        const auto strategy = resource_strategy(speeds, responses, 1, {}).value();
        CHECK(strategy[0] == doctest::Approx(0.5));
        CHECK(strategy[1] == doctest::Approx(0.25));
        CHECK(strategy[2] == doctest::Approx(0.25));
        // Against the computing between two responses: a few milliseconds in a second are nothing.
        const auto patient = resource_strategy(speeds, responses, 100, {}).value();
        CHECK(patient[2] == doctest::Approx(1 / 1.03));
        CHECK(patient[1] == doctest::Approx(0.5 / 1.01));
        const auto squared = resource_strategy(speeds, responses, 1, {2, 0.5}).value();
        CHECK(squared[1] == doctest::Approx(0.25 / std::sqrt(2.0)));
        CHECK(squared[2] == doctest::Approx(0.5));
        CHECK_FALSE(resource_strategy(speeds, responses, 0, {}));
        CHECK_FALSE(resource_strategy(speeds, responses, -1, {}));
        CHECK_FALSE(resource_strategy(speeds, {responses, 2}, 1, {}));
        Numbers numbers(4);
        for (int i = 0; i < kRounds; ++i) {
            const std::size_t nodes = 1 + numbers.below(6);
            const auto c = numbers.several(nodes, &Numbers::adversarial);
            const auto t = numbers.several(nodes, &Numbers::adversarial);
            const auto any = resource_strategy(c, t, numbers.plausible(),
                                               {numbers.uniform() * 3, numbers.uniform() * 3});
            if (!any) continue;
            for (const double r : *any) CHECK((r >= 0 && r <= 1));
        }
    }

    TEST_CASE("tasks go to nodes by what they can do, until moving one more does not help") {
        const std::uint64_t tasks[] = {4, 4, 4, 4};
        const double strategy[] = {1, 1, 0.5, 0.25};
        const double task_s[] = {1, 1, 2, 4};
        const auto answer = reassign_tasks(tasks, strategy, task_s, 0.05).value();
        CHECK(answer.before_s == 16);
        CHECK(answer.after_s <= 8);
        CHECK(std::accumulate(answer.tasks.begin(), answer.tasks.end(), std::uint64_t{0}) == 16);
    }

    TEST_CASE("the strategy decides how many tasks each gets, the search how that is rounded") {
        const std::uint64_t tasks[] = {0, 16};
        const double strategy[] = {3, 1};
        const double alike[] = {1, 1};
        // By the times alone it would be 8 and 8.
        CHECK(reassign_tasks(tasks, strategy, alike, 0.05)->tasks ==
              std::vector<std::uint64_t>{12, 4});
        // 3.75 and 1.25 of 5: largest remainder says 4 and 1, and the second one is faster.
        const std::uint64_t few[] = {0, 5};
        const double faster[] = {1, 0.5};
        const auto rounded = reassign_tasks(few, strategy, faster, 0).value();
        CHECK(rounded.tasks == std::vector<std::uint64_t>{0, 5});  // 2.5 s: nothing is shorter
        const double slower[] = {0.5, 0.6};
        const auto other = reassign_tasks(few, strategy, slower, 0.05).value();
        CHECK(other.tasks == std::vector<std::uint64_t>{3, 2});
        CHECK(other.after_s == doctest::Approx(1.5));
        CHECK(other.rounds == 1);
    }

    TEST_CASE("no node gets more than its part by the strategy rounded up, or less than down") {
        Numbers numbers(6);
        for (int i = 0; i < kRounds; ++i) {
            const std::size_t nodes = 1 + numbers.below(6);
            std::vector<std::uint64_t> tasks(nodes);
            std::uint64_t all = 0;
            for (auto& count : tasks) all += count = numbers.below(50);
            const auto strategy = numbers.several(nodes, &Numbers::plausible);
            const auto answer =
                reassign_tasks(tasks, strategy, numbers.several(nodes, &Numbers::plausible), 0.05);
            if (!answer || answer->tasks == tasks || sum(strategy) <= 0) continue;
            for (std::size_t k = 0; k < nodes; ++k) {
                const double part = strategy[k] / sum(strategy) * static_cast<double>(all);
                CHECK(static_cast<double>(answer->tasks[k]) >= std::floor(part - 1e-6));
                CHECK(static_cast<double>(answer->tasks[k]) <= std::ceil(part + 1e-6));
            }
        }
    }

    TEST_CASE("a gain that is too small leaves the tasks where they are") {
        const std::uint64_t tasks[] = {10, 10};
        const double strategy[] = {1, 1};
        const double task_s[] = {1, 1.04};
        const auto answer = reassign_tasks(tasks, strategy, task_s, 0.05).value();
        CHECK(answer.tasks == std::vector<std::uint64_t>{10, 10});
        CHECK(answer.before_s == answer.after_s);
    }

    TEST_CASE("reassigning keeps the number of tasks and never makes the step longer") {
        Numbers numbers(5);
        for (int i = 0; i < kRounds; ++i) {
            const std::size_t nodes = 1 + numbers.below(6);
            std::vector<std::uint64_t> tasks(nodes);
            for (auto& count : tasks) count = numbers.below(50);
            const auto answer = reassign_tasks(tasks, numbers.several(nodes, &Numbers::adversarial),
                                               numbers.several(nodes, &Numbers::adversarial), 0.05);
            if (!answer) continue;
            CHECK(answer->after_s <= answer->before_s);
            CHECK(std::accumulate(answer->tasks.begin(), answer->tasks.end(), std::uint64_t{0}) ==
                  std::accumulate(tasks.begin(), tasks.end(), std::uint64_t{0}));
        }
    }
}

#include "emu/sim/fiber.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

using namespace emu;

TEST_SUITE("sim.fiber") {
    TEST_CASE("a fiber goes on where it waited") {
        std::string seen;
        Fiber fiber([&] {
            seen += "a";
            Fiber::wait();
            seen += "b";
        });
        CHECK(seen.empty());
        fiber.resume();
        CHECK(seen == "a");
        CHECK_FALSE(fiber.has_ended());
        fiber.resume();
        CHECK(seen == "ab");
        CHECK(fiber.has_ended());
    }

    TEST_CASE("fibers take turns, each with what is on its own stack") {
        constexpr int kFibers = 100;
        constexpr int kTurns = 50;
        std::vector<int> sums(kFibers);
        std::vector<std::unique_ptr<Fiber>> fibers;
        for (int i = 0; i < kFibers; ++i) {
            fibers.push_back(std::make_unique<Fiber>([&sums, i] {
                int sum = 0;
                for (int turn = 0; turn < kTurns; ++turn) {
                    sum += i;
                    Fiber::wait();
                }
                sums[static_cast<std::size_t>(i)] = sum;
            }));
        }
        for (int turn = 0; turn <= kTurns; ++turn) {
            for (const auto& fiber : fibers) fiber->resume();
        }
        for (int i = 0; i < kFibers; ++i) {
            CHECK(fibers[static_cast<std::size_t>(i)]->has_ended());
            CHECK(sums[static_cast<std::size_t>(i)] == i * kTurns);
        }
    }
}

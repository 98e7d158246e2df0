// Reading through a cache, against formulas for orders that are drawn at random.

#include "emu/sim/loading.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace emu;

namespace {

constexpr LoadingPolicy kAll[] = {LoadingPolicy::kLru, LoadingPolicy::kS3Fifo,
                                  LoadingPolicy::kFarthest, LoadingPolicy::kKept,
                                  LoadingPolicy::kPlan};

LoadingFigures figures() {
    LoadingFigures some;
    some.samples = 4000;
    return some;
}

}  // namespace

TEST_SUITE("sim.loading") {
    // A sample at place x of an epoch and y of the next has 1 - x others of the one behind it and,
    // of those at y before it, the part x that was not among them.
    TEST_CASE("the hits of a cache that drops what was read longest ago are those of the formula") {
        for (const double cache : {0.1, 0.3, 0.5, 0.7, 0.9, 0.99}) {
            CAPTURE(cache);
            const double hits = simulate_loading(figures(), LoadingPolicy::kLru, cache).hits;
            CHECK(std::abs(hits - (cache + (1 - cache) * std::log(1 - cache))) < 0.01);
        }
    }

    TEST_CASE("what is kept is hit, and no policy has more hits than one that knows all reads") {
        for (const double cache : {0.0, 0.25, 0.5, 0.75, 1.0}) {
            CAPTURE(cache);
            const double most = simulate_loading(figures(), LoadingPolicy::kFarthest, cache).hits;
            for (const LoadingPolicy policy : kAll) {
                CAPTURE(name_of(policy));
                const LoadingResult result = simulate_loading(figures(), policy, cache);
                CHECK(result.hits <= most + 1e-9);
                // What passes is in memory as well: eight of the loader's without a plan.
                CHECK(result.most_held <= cache + 8.0 / figures().samples + 1e-9);
                CHECK(std::abs(result.epoch - result.stall - 4.0) < 1e-6);
                CHECK(result.stall >= least_stall(figures(), most) - 1e-6);
            }
            CHECK(std::abs(simulate_loading(figures(), LoadingPolicy::kKept, cache).hits - cache) <
                  1e-9);
        }
    }

    // 2 % of the cache, or 20 ms of reads twice, are for what passes.
    TEST_CASE("with a plan hits are 0.98 of what fits, and stalls those that the source makes") {
        for (const double source : {0.3, 0.5, 0.9, 2.0}) {
            for (const double cache : {0.1, 0.25, 0.5, 0.75, 0.9}) {
                CAPTURE(source);
                CAPTURE(cache);
                LoadingFigures some = figures();
                some.source = source;
                const LoadingResult result = simulate_loading(some, LoadingPolicy::kPlan, cache);
                const double answers = 2 * 0.02 * 1000 + 1;
                const double passing = std::max(0.02 * cache * some.samples, answers);
                CHECK(result.hits * some.samples >= cache * some.samples - passing - 1);
                // 60 ms of an epoch of 4 s for the first sample and where misses come together.
                CHECK(result.stall <= 1.1 * least_stall(some, result.hits) + 0.1);
            }
        }
    }
}

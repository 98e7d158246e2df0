// Neighbour exchange: against FabricSampler's in python.torch_control.exchange; here what holds of
// any.

#include "fabricd/data/plan/exchange.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "fabricd/data/plan/sample_order.hpp"

using namespace fabricd;

namespace {

using Counts = std::vector<std::uint32_t>;

Counts random_counts(std::mt19937& random, std::uint32_t total, std::uint32_t world) {
    Counts counts(world, 0);
    for (std::uint32_t sample = 0; sample < total; ++sample) {
        const auto rank = random() % (world * 2);  // the first ranks get more
        ++counts[rank % world / (rank < world ? 1 : 2)];
    }
    return counts;
}

}  // namespace

TEST_SUITE("data.exchange") {
    TEST_CASE("every sample is drawn once, whatever the cuts and however much is exchanged") {
        std::mt19937 random(1);
        for (int turn = 0; turn < 300; ++turn) {
            const std::uint32_t samples = random() % 400, size = 1 + random() % 40;
            const std::uint32_t world = 1 + random() % 7;
            const bool drop_last = random() % 2 == 0;
            const auto order = sample_order({samples, random(), true});
            std::vector<BatchCut> cuts;
            for (std::uint32_t since = 0; since < 10; since += 1 + random() % 5) {
                cuts.push_back({since, random_counts(random, size, world),
                                random_counts(random, samples % size, world)});
            }
            const ExchangeRule rule{random(), random() % 3, random() % 4 * kWholeExchange / 3};
            Counts drawn;
            for (std::uint32_t rank = 0; rank < world; ++rank) {
                const auto share = fabric_share(order, size, drop_last, cuts, rank, rule);
                drawn.insert(drawn.end(), share.begin(), share.end());
            }
            Counts wanted = order;
            if (drop_last) wanted.resize(samples - samples % size);
            std::sort(drawn.begin(), drawn.end());
            std::sort(wanted.begin(), wanted.end());
            CHECK(drawn == wanted);
        }
    }

    TEST_CASE("one step swaps the share of the smaller piece with one neighbour each") {
        std::mt19937 random(2);
        double swapped = 0, expected = 0;
        for (std::uint64_t seed = 0; seed < 2000; ++seed) {
            const std::uint32_t world = 2 + seed % 4;
            const Counts counts = random_counts(random, 120, world);
            const ExchangeRule rule{seed, 0, kWholeExchange / 10};
            const auto places = exchanged_places(rule, 0, 1, counts);
            std::uint32_t begin = 0;
            std::vector<std::vector<std::uint32_t>> given(world);
            for (std::uint32_t rank = 0; rank < world; begin += counts[rank++]) {
                for (std::uint32_t at = begin; at < begin + counts[rank]; ++at) {
                    std::uint32_t owner = 0;
                    for (std::uint32_t end = counts[0]; places[at] >= end; end += counts[++owner]) {
                    }
                    if (owner != rank) given[rank].push_back(owner);
                }
            }
            std::uint32_t partners = 0;
            for (std::uint32_t rank = 0; rank < world; ++rank) {
                if (given[rank].empty()) continue;
                const std::uint32_t other = given[rank][0];
                ++partners;
                CHECK((other == (rank + 1) % world || rank == (other + 1) % world));
                CHECK(std::count(given[rank].begin(), given[rank].end(), other) ==
                      static_cast<std::ptrdiff_t>(given[rank].size()));
                CHECK(given[other].size() == given[rank].size());
                const double exact = std::min(counts[rank], counts[other]) / 10.0;
                CHECK(std::abs(static_cast<double>(given[rank].size()) - exact) < 1);
                swapped += static_cast<double>(given[rank].size());
                expected += exact;
            }
            CHECK(partners <= world);
        }
        // Fractions are rounded up as often as they are large.
        CHECK(swapped / expected > 0.97);
        CHECK(swapped / expected < 1.08);
    }

    TEST_CASE("nothing is exchanged without a part, without a step, or with one rank") {
        const Counts counts = {5, 3};
        Counts plain(8);
        std::iota(plain.begin(), plain.end(), 0U);
        CHECK(exchanged_places({1, 0, 0}, 0, 9, counts) == plain);
        CHECK(exchanged_places({1, 0, kWholeExchange}, 9, 9, counts) == plain);
        CHECK(exchanged_places({1, 0, kWholeExchange}, 0, 9, {8}) == plain);
        CHECK(exchanged_places({1, 0, kWholeExchange}, 0, 9, counts) != plain);
    }

    TEST_CASE("equal shares are cut in whole units but for one tail") {
        CHECK(equal_cut(10, 1, 3) == Counts{4, 3, 3});
        CHECK(equal_cut(10, 4, 2) == Counts{8, 2});
        CHECK(equal_cut(2, 1, 4) == Counts{1, 1, 0, 0});
        CHECK(equal_cut(0, 3, 2) == Counts{0, 0});
    }
}

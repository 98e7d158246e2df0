// The order of an epoch, against what torch.randperm() and DistributedSampler of PyTorch 1.13 gave
// for the same seeds, written down here.

#include "fabricd/data/plan/sample_order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

using namespace fabricd;

namespace {

std::uint64_t sum_of(const std::vector<std::uint32_t>& order) {
    std::uint64_t sum = 0;
    for (const std::uint32_t sample : order) {
        sum = static_cast<std::uint64_t>(
            (static_cast<unsigned __int128>(sum) * 1'000'003 + sample) % (std::uint64_t{1} << 61));
    }
    return sum;
}

using Order = std::vector<std::uint32_t>;

}  // namespace

TEST_SUITE("data.sample_order") {
    TEST_CASE("a seed gives the order that PyTorch draws from it") {
        const struct {
            std::uint32_t samples;
            std::uint64_t seed;
            Order first;
            std::uint64_t sum;
        } drawn[] = {
            {10, 0, {4, 1, 7, 5, 3, 9}, 748364186944113989U},
            {10, 7, {5, 0, 3, 4, 1, 7}, 761916358200778849U},
            {1000, 42, {542, 618, 816, 68, 94, 215}, 137864479555099736U},
            {60000, 2147483655U, {47043, 27846, 1318, 30245, 35413, 10820}, 2156177282147289808U},
            {60000, 4294967301U, {53411, 765, 31431, 44421, 31202, 28270}, 994980531354589780U},
            {100003,
             9223372036854775807U,
             {13792, 37393, 15292, 49642, 14713, 78015},
             7376660695907725U},
        };
        for (const auto& one : drawn) {
            CAPTURE(one.samples);
            CAPTURE(one.seed);
            const Order order = sample_order({one.samples, one.seed, true});
            REQUIRE(order.size() == one.samples);
            CHECK(std::equal(one.first.begin(), one.first.end(), order.begin()));
            CHECK(sum_of(order) == one.sum);
        }
    }

    TEST_CASE("an order has each sample once, and is the set's own without shuffling") {
        for (const std::uint32_t samples : {0U, 1U, 2U, 1000U}) {
            CAPTURE(samples);
            Order plain(samples);
            std::iota(plain.begin(), plain.end(), 0U);
            CHECK(sample_order({samples, 3, false}) == plain);
            Order order = sample_order({samples, 3, true});
            std::sort(order.begin(), order.end());
            CHECK(order == plain);
        }
    }

    TEST_CASE("a rank's part of it is what DistributedSampler gives that rank") {
        // Seed 5 in epoch 2.
        const auto share = [](std::uint32_t samples, std::uint32_t rank, std::uint32_t replicas,
                              bool drop_last) {
            return distributed_share(sample_order({samples, 7, true}), rank, replicas, drop_last);
        };
        const Order full[] = {{5, 1, 8}, {0, 7, 2}, {3, 9, 5}, {4, 6, 0}};
        const Order cut[] = {{5, 1}, {0, 7}, {3, 9}, {4, 6}};
        for (std::uint32_t rank = 0; rank < 4; ++rank) {
            CAPTURE(rank);
            CHECK(share(10, rank, 4, false) == full[rank]);
            CHECK(share(10, rank, 4, true) == cut[rank]);
        }
        for (std::uint32_t rank = 0; rank < 8; ++rank) {
            CHECK(share(3, rank, 8, false) == Order{rank % 3});
            CHECK(share(3, rank, 8, true).empty());
        }
        CHECK(share(7, 0, 1, false) == Order{5, 0, 3, 1, 2, 6, 4});
    }
}

#include "bench/pattern.hpp"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

namespace {

using bench::Buffers;
using bench::Collective;

/// Adds up what the ranks would fill in: the right answer, made another way than verify() does.
std::vector<float> right_sum(int world, std::size_t count) {
    std::vector<float> sum(count, 0.0f);
    std::vector<float> input(count);
    for (int rank = 0; rank < world; ++rank) {
        bench::fill(Collective::kAllreduce, rank, Buffers{input.data(), nullptr, count, 0});
        for (std::size_t i = 0; i < count; ++i) sum[i] += input[i];
    }
    return sum;
}

Buffers output_of(std::vector<float>& values) {
    return Buffers{nullptr, values.data(), 0, values.size()};
}

}  // namespace

TEST_SUITE("bench.pattern") {
    TEST_CASE("the right sum passes on every rank") {
        auto sum = right_sum(4, 1000);
        for (int rank = 0; rank < 4; ++rank)
            CHECK(bench::verify(Collective::kAllreduce, rank, 4, output_of(sum)).empty());
    }

    TEST_CASE("a sum without one rank fails") {
        auto sum = right_sum(3, 1000);
        CHECK(!bench::verify(Collective::kAllreduce, 0, 4, output_of(sum)).empty());
    }

    TEST_CASE("one wrong element at the end fails and is named") {
        auto sum = right_sum(2, 1000);
        sum.back() += 1;
        const auto text = bench::verify(Collective::kAllreduce, 1, 2, output_of(sum));
        CHECK(text.find("element 999 of rank 1") != std::string::npos);
    }

    TEST_CASE("two parts of a power of two changed with each other fail") {
        auto sum = right_sum(2, 1024);
        for (std::size_t i = 0; i < 512; ++i) std::swap(sum[i], sum[512 + i]);
        CHECK(!bench::verify(Collective::kAllreduce, 0, 2, output_of(sum)).empty());
    }

    TEST_CASE("a reduce_scatter result is right on its own rank only") {
        auto sum = right_sum(2, 64);
        std::vector<float> second(sum.begin() + 32, sum.end());
        CHECK(bench::verify(Collective::kReduceScatter, 1, 2, output_of(second)).empty());
        CHECK(!bench::verify(Collective::kReduceScatter, 0, 2, output_of(second)).empty());
    }

    TEST_CASE("a broadcast that did nothing fails on every rank but the root") {
        std::vector<float> buffer(64);
        const Buffers b{buffer.data(), buffer.data(), 64, 64};
        bench::fill(Collective::kBroadcast, 0, b);
        CHECK(bench::verify(Collective::kBroadcast, 0, 2, b).empty());
        bench::fill(Collective::kBroadcast, 1, b);
        CHECK(!bench::verify(Collective::kBroadcast, 1, 2, b).empty());
    }

    TEST_CASE("an all_gather has the parts in rank order") {
        std::vector<float> gathered(64);
        for (int rank = 0; rank < 2; ++rank)
            bench::fill(Collective::kAllGather, rank,
                        Buffers{gathered.data() + 32 * rank, nullptr, 32, 0});
        const Buffers b{nullptr, gathered.data(), 32, 64};
        CHECK(bench::verify(Collective::kAllGather, 0, 2, b).empty());
        for (std::size_t i = 0; i < 32; ++i) std::swap(gathered[i], gathered[32 + i]);
        CHECK(!bench::verify(Collective::kAllGather, 0, 2, b).empty());
    }
}

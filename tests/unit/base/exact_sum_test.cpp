#include "libfabricshm/base/exact_sum.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/aborts.hpp"

using fabricshm::ExactSum;

namespace {

constexpr double kLowest = std::numeric_limits<double>::denorm_min();
constexpr double kHighest = std::numeric_limits<double>::max();

double sum_of(const std::vector<double>& values) {
    ExactSum sum;
    for (const double value : values) sum.add(value);
    return sum.value();
}

// Numbers of all sizes, whose plain sum depends on the order.
std::vector<double> mixed(std::uint64_t seed, int count, int exponents) {
    std::mt19937_64 random(seed);
    std::vector<double> values;
    for (int i = 0; i < count; ++i) {
        const double mantissa = static_cast<double>(random() >> 11) * 0x1p-53;
        values.push_back(
            std::ldexp(mantissa, static_cast<int>(random() % exponents) - exponents / 2));
    }
    return values;
}

}  // namespace

TEST_SUITE("base.exact_sum") {
    TEST_CASE("a sum of nothing is 0, and of one number that number") {
        CHECK(sum_of({}) == 0);
        for (const double value : {0.0, 1.0, 0.1, kLowest, 3 * kLowest, kHighest, 0x1p-1022,
                                   0x1.fffffffffffffp-1022, 0x0.fffffffffffffp-1022, 0x1p64}) {
            CHECK(sum_of({value}) == value);
        }
        for (const double value : mixed(3, 2000, 2000)) CHECK(sum_of({value}) == value);
    }

    TEST_CASE("the order does not matter, nor into how many parts the numbers are cut") {
        std::vector<double> values = mixed(7, 5000, 300);
        const double whole = sum_of(values);
        std::mt19937_64 random(8);
        for (int round = 0; round < 20; ++round) {
            std::shuffle(values.begin(), values.end(), random);
            ExactSum parts[7];
            for (const double value : values) parts[random() % 7].add(value);
            ExactSum all;
            for (const ExactSum& part : parts) all.add(part);
            CHECK(all.value() == whole);
        }
    }

    TEST_CASE("it is rounded once, to nearest even") {
        // As long double has 64 bits of mantissa, sums of a few numbers are exact in it.
        std::mt19937_64 random(9);
        for (int round = 0; round < 5000; ++round) {
            const auto a = static_cast<double>(random() >> 11);
            const double b = std::ldexp(static_cast<double>(random() >> 42), -9);
            const long double exact = static_cast<long double>(a) + static_cast<long double>(b);
            CHECK(sum_of({a, b}) == static_cast<double>(exact));
        }
        CHECK(sum_of({0x1p53, 1}) == 0x1p53);
        CHECK(sum_of({0x1p53, 1, kLowest}) == 0x1p53 + 2);
        CHECK(sum_of({0x1p53 + 2, 1}) == 0x1p53 + 4);
    }

    TEST_CASE("small numbers are not lost next to large ones") {
        ExactSum sum;
        sum.add(0x1p100);
        for (int i = 0; i < 1 << 10; ++i) sum.add(0x1p37);
        CHECK(sum.value() == 0x1p100 + 0x1p47);
        CHECK(sum_of(std::vector<double>(1000, 0.1)) == 100.00000000000000555111512312578270);
    }

    TEST_CASE("beyond the largest number it is infinity, and comes no further") {
        CHECK(std::isinf(sum_of({kHighest, kHighest})));
        CHECK(sum_of({kHighest, 0x1p969}) == kHighest);
    }

    TEST_CASE("a number that is negative or not finite is a bug") {
        using test_support::aborts_with;
        CHECK(!aborts_with([] { ExactSum().add(-1); }).empty());
        CHECK(
            !aborts_with([] { ExactSum().add(std::numeric_limits<double>::infinity()); }).empty());
        CHECK(
            !aborts_with([] { ExactSum().add(std::numeric_limits<double>::quiet_NaN()); }).empty());
    }
}

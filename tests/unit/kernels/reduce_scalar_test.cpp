// The reference itself, against arithmetic in wider types and against its written rules.

#include "kernels/cpu/reduce_scalar.hpp"

#include <cmath>
#include <limits>

#include "kernels/cpu/half.hpp"
#include "tests/unit/kernels/reduce_compare.hpp"

using kernels::DType;
using kernels::ReduceOp;
using kernels_test::Random;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Reduces one element per source.
template <class T>
T reduce_one(DType type, ReduceOp op, const std::vector<T>& values, int divisor = 1) {
    std::vector<const void*> sources;
    for (const T& value : values) sources.push_back(&value);
    T result = {};
    void* destination = &result;
    kernels::ReduceJob job;
    job.type = type;
    job.op = op;
    job.sources = sources.data();
    job.source_count = static_cast<int>(sources.size());
    job.destinations = &destination;
    job.destination_count = 1;
    job.count = 1;
    job.divisor = divisor;
    kernels::reduce_scalar_range(job, 0, 1);
    return result;
}

float sum(const std::vector<float>& values) {
    return reduce_one(DType::kF32, ReduceOp::kSum, values);
}
float minimum(const std::vector<float>& values) {
    return reduce_one(DType::kF32, ReduceOp::kMin, values);
}
float maximum(const std::vector<float>& values) {
    return reduce_one(DType::kF32, ReduceOp::kMax, values);
}
std::uint32_t bits(float value) {
    return kernels::bits_as<std::uint32_t>(value);
}

float random_float(Random& random) {
    const double scale = std::ldexp(1.0, static_cast<int>(random() % 60) - 30);
    return static_cast<float>((static_cast<double>(random() % 2000001) - 1e6) * scale);
}

// As the C structs of fabricshm.h: 16 bytes with the 8-byte values, the last 4 of them padding.
template <class T>
struct Pair {
    T value;
    std::int32_t index;
    bool operator==(const Pair&) const = default;
};

template <class T>
int count_wrong_places(DType type) {
    static_assert(sizeof(Pair<T>) == sizeof(T) * 2);
    Random random(11);
    int wrong = 0;
    for (int round = 0; round < 2000; ++round) {
        std::vector<Pair<T>> values;
        for (std::uint64_t s = 0; s <= 1 + random() % 5; ++s) {
            const auto value = static_cast<T>(static_cast<int>(random() % 5) - 2);
            values.push_back({value, static_cast<std::int32_t>(random() % 100) - 50});
        }
        // Sorted by what is wanted first, then by the index.
        const auto best = [&](auto before) {
            Pair<T> first = values[0];
            for (const Pair<T>& each : values) {
                const bool tie = each.value == first.value && each.index < first.index;
                if (before(each.value, first.value) || tie) first = each;
            }
            return first;
        };
        const Pair<T> least = best([](T a, T b) { return a < b; });
        const Pair<T> most = best([](T a, T b) { return a > b; });
        wrong += !(reduce_one(type, ReduceOp::kMinLoc, values) == least);
        wrong += !(reduce_one(type, ReduceOp::kMaxLoc, values) == most);
    }
    return wrong;
}

// Integers modulo 2^64 in steps that cannot overflow, then cut to T.
template <class T>
int count_wrong_integers(DType type) {
    Random random(7);
    int wrong = 0;
    for (int round = 0; round < 2000; ++round) {
        std::vector<T> values;
        unsigned __int128 total = 0, product = 1;
        T least = std::numeric_limits<T>::max(), most = std::numeric_limits<T>::min();
        T all = static_cast<T>(~T{0}), any = 0, odd = 0;
        int truths = 0;
        for (std::uint64_t s = 0; s <= random() % 5; ++s) {
            const auto value = random() % 4 == 0 ? T{0} : static_cast<T>(random());
            values.push_back(value);
            total += static_cast<unsigned __int128>(static_cast<__int128>(value));
            product *= static_cast<unsigned __int128>(static_cast<__int128>(value));
            least = value < least ? value : least;
            most = value > most ? value : most;
            all = static_cast<T>(all & value);
            any = static_cast<T>(any | value);
            odd = static_cast<T>(odd ^ value);
            truths += value != 0;
        }
        const int number = static_cast<int>(values.size());
        const int divisor = 1 + static_cast<int>(random() % 400);
        const auto average = static_cast<T>(static_cast<__int128>(static_cast<T>(total)) / divisor);
        wrong += reduce_one(type, ReduceOp::kSum, values) != static_cast<T>(total);
        wrong += reduce_one(type, ReduceOp::kProd, values) != static_cast<T>(product);
        wrong += reduce_one(type, ReduceOp::kMin, values) != least;
        wrong += reduce_one(type, ReduceOp::kMax, values) != most;
        wrong += reduce_one(type, ReduceOp::kBand, values) != all;
        wrong += reduce_one(type, ReduceOp::kBor, values) != any;
        wrong += reduce_one(type, ReduceOp::kBxor, values) != odd;
        // One source is copied as it is, whatever the operation.
        const auto truth = [&](bool of_all) {
            return number == 1 ? values[0] : static_cast<T>(of_all ? 1 : 0);
        };
        wrong += reduce_one(type, ReduceOp::kLand, values) != truth(truths == number);
        wrong += reduce_one(type, ReduceOp::kLor, values) != truth(truths != 0);
        wrong += reduce_one(type, ReduceOp::kLxor, values) != truth(truths % 2 == 1);
        wrong += reduce_one(type, ReduceOp::kAvg, values, divisor) != average;
    }
    return wrong;
}

}  // namespace

TEST_SUITE("kernels.reduce_scalar") {
    // A double holds enough digits of two floats that rounding twice equals rounding once.
    TEST_CASE("two floats combine as in double, rounded once") {
        Random random(3);
        int wrong = 0;
        for (int round = 0; round < 20000; ++round) {
            const float a = random_float(random), b = random_float(random);
            const int divisor = 1 + static_cast<int>(random() % 1000);
            const double da = a, db = b;
            const float total = static_cast<float>(da + db);
            wrong += sum({a, b}) != total;
            wrong += reduce_one<float>(DType::kF32, ReduceOp::kProd, {a, b}) !=
                     static_cast<float>(da * db);
            wrong += reduce_one<float>(DType::kF32, ReduceOp::kAvg, {a, b}, divisor) !=
                     static_cast<float>(static_cast<double>(total) / divisor);
            wrong += minimum({a, b}) != static_cast<float>(std::fmin(da, db));
            wrong += maximum({a, b}) != static_cast<float>(std::fmax(da, db));
        }
        CHECK(wrong == 0);
    }

    TEST_CASE("sums of doubles lie within the error bound of the order given") {
        Random random(4);
        int wrong = 0;
        for (int round = 0; round < 2000; ++round) {
            std::vector<double> values;
            long double exact = 0, magnitude = 0;
            for (int s = 0; s < 16; ++s) {
                values.push_back(random_float(random) * 1.000000001);
                exact += values.back();
                magnitude += std::fabs(values.back());
            }
            const double got = reduce_one(DType::kF64, ReduceOp::kSum, values);
            const long double bound = 16 * magnitude * std::numeric_limits<double>::epsilon();
            wrong += !(std::fabs(got - exact) <= bound);
        }
        CHECK(wrong == 0);
    }

    TEST_CASE("sources are combined from the first to the last") {
        CHECK(sum({1e30f, -1e30f, 1.0f}) == 1.0f);
        CHECK(sum({1.0f, 1e30f, -1e30f}) == 0.0f);
    }

    TEST_CASE("16-bit floats accumulate in f32 and round once") {
        const auto f16 = kernels::f32_to_f16;
        // 2048 + 1 is a tie in f16 and would be lost each time; in f32 it is not.
        const std::vector<std::uint16_t> halves = {f16(2048), f16(1), f16(1), f16(1)};
        CHECK(reduce_one(DType::kF16, ReduceOp::kSum, halves) == f16(2052));  // 2051: tie to even
        const std::vector<std::uint16_t> large = {f16(60000), f16(60000)};
        CHECK(reduce_one(DType::kF16, ReduceOp::kAvg, large, 2) == f16(60000));
        CHECK(reduce_one(DType::kF16, ReduceOp::kSum, large) == 0x7c00);
        const auto bf16 = kernels::f32_to_bf16;
        const std::vector<std::uint16_t> brains = {bf16(256), bf16(1), bf16(1), bf16(1)};
        CHECK(reduce_one(DType::kBF16, ReduceOp::kSum, brains) == bf16(260));  // 259: tie to even
    }

    TEST_CASE("any NaN makes the result the one canonical NaN") {
        const float payload = kernels::bits_as<float>(0xffc12345u);
        for (const std::vector<float>& values :
             {std::vector<float>{payload, 1.0f}, {1.0f, payload}, {payload, kNan, -kInfinity}}) {
            CHECK(bits(sum(values)) == kernels::kNanF32);
            CHECK(bits(minimum(values)) == kernels::kNanF32);
            CHECK(bits(maximum(values)) == kernels::kNanF32);
            CHECK(bits(reduce_one(DType::kF32, ReduceOp::kProd, values)) == kernels::kNanF32);
            CHECK(bits(reduce_one(DType::kF32, ReduceOp::kAvg, values, 2)) == kernels::kNanF32);
        }
        CHECK(bits(sum({kInfinity, -kInfinity})) == kernels::kNanF32);
        CHECK(reduce_one<std::uint16_t>(DType::kF16, ReduceOp::kSum, {0xfe01, 0}) ==
              kernels::kNanF16);
        CHECK(reduce_one<std::uint16_t>(DType::kBF16, ReduceOp::kMax, {0, 0xff81}) ==
              kernels::kNanBF16);
        CHECK(kernels::bits_as<std::uint64_t>(reduce_one<double>(
                  DType::kF64, ReduceOp::kMin,
                  {1.0, kernels::bits_as<double>(std::uint64_t{0xfff0000000000001})})) ==
              kernels::kNanF64);
    }

    TEST_CASE("the negative zero is the smaller one, whatever the order") {
        CHECK(std::signbit(minimum({0.0f, -0.0f})));
        CHECK(std::signbit(minimum({-0.0f, 0.0f})));
        CHECK_FALSE(std::signbit(maximum({0.0f, -0.0f})));
        CHECK_FALSE(std::signbit(maximum({-0.0f, 0.0f})));
        CHECK(std::signbit(maximum({-0.0f, -0.0f})));
        CHECK(std::signbit(sum({-0.0f, -0.0f})));
    }

    TEST_CASE("denormals are kept") {
        const float least = kernels::bits_as<float>(1u);
        CHECK(sum({least, least}) == kernels::bits_as<float>(2u));
        CHECK(minimum({least, 1.0f}) == least);
    }

    TEST_CASE("integers wrap, and their average truncates towards zero") {
        CHECK(count_wrong_integers<std::int8_t>(DType::kI8) == 0);
        CHECK(count_wrong_integers<std::uint8_t>(DType::kU8) == 0);
        CHECK(count_wrong_integers<std::int32_t>(DType::kI32) == 0);
        CHECK(count_wrong_integers<std::uint32_t>(DType::kU32) == 0);
        CHECK(count_wrong_integers<std::int64_t>(DType::kI64) == 0);
        CHECK(count_wrong_integers<std::uint64_t>(DType::kU64) == 0);
        CHECK(reduce_one<std::int32_t>(DType::kI32, ReduceOp::kAvg, {-4, -3}, 2) == -3);
    }

    TEST_CASE("the least and the largest value come with their index, the lowest of equal ones") {
        CHECK(count_wrong_places<float>(DType::kF32Loc) == 0);
        CHECK(count_wrong_places<double>(DType::kF64Loc) == 0);
        CHECK(count_wrong_places<std::int32_t>(DType::kI32Loc) == 0);
        CHECK(count_wrong_places<std::int64_t>(DType::kI64Loc) == 0);
    }

    TEST_CASE("places follow the order of minimum and maximum: NaN first, then -0 below +0") {
        const auto at = [](ReduceOp op, const std::vector<Pair<float>>& values) {
            return reduce_one(DType::kF32Loc, op, values).index;
        };
        CHECK(at(ReduceOp::kMinLoc, {{0.0f, 1}, {-0.0f, 2}}) == 2);
        CHECK(at(ReduceOp::kMaxLoc, {{-0.0f, 1}, {0.0f, 2}}) == 2);
        for (const ReduceOp op : {ReduceOp::kMinLoc, ReduceOp::kMaxLoc}) {
            CHECK(at(op, {{kInfinity, 1}, {kNan, 4}, {-kInfinity, 2}, {kNan, 3}}) == 3);
        }
    }

    TEST_CASE("the padding behind an index is zeros, whatever the sources have there") {
        unsigned char first[16], second[16], result[16];
        std::memset(first, 0xee, sizeof first);
        std::memset(second, 0xdd, sizeof second);
        const void* sources[] = {first, second};
        void* destination = result;
        kernels::ReduceJob job{DType::kI64Loc, ReduceOp::kMinLoc, sources, 2, &destination, 1, 1};
        kernels::reduce_scalar_range(job, 0, 1);
        CHECK(std::memcmp(result, second, 12) == 0);
        for (int i = 12; i < 16; ++i) CHECK(result[i] == 0);
    }

    TEST_CASE("a single source is copied as it is, NaN payload and all") {
        const std::uint32_t odd_nan = 0xff801234u;
        std::uint32_t result = 0;
        const void* source = &odd_nan;
        void* destination = &result;
        kernels::ReduceJob job{DType::kF32, ReduceOp::kSum, &source, 1, &destination, 1, 1};
        for (int i = 0; kernels::kernel_set(i) != nullptr; ++i) {
            if (!kernels::kernel_set(i)->available()) continue;
            result = 0;
            kernels::reduce_with(*kernels::kernel_set(i), job);
            CHECK(result == odd_nan);
        }
    }
}

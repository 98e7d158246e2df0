// The formats of 8 bits against their definitions: tables of values made in double, and the nearest
// of them found by search.

#include "kernels/cpu/float8.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "tests/unit/kernels/reduce_compare.hpp"

using kernels::DType;
using kernels::ReduceOp;

namespace {

constexpr double kDoubleInfinity = std::numeric_limits<double>::infinity();

// What OCP's "8-bit floating point specification" says of each.
struct Definition {
    const char* name;
    DType type;
    int bias, mantissa_bits;
    int largest;    // the code of the largest finite number
    double beyond;  // what the next one would be
    int overflow;   // the code of what is beyond; 0x7f: NaN
    float (*widen)(std::uint8_t) noexcept;
    std::uint8_t (*narrow)(float) noexcept;
};
using E4M3 = kernels::Float8<4, 3, false>;
using E5M2 = kernels::Float8<5, 2, true>;
constexpr Definition kDefinitions[] = {
    {"e4m3fn", DType::kF8E4M3, 7, 3, 0x7e, 480, 0x7f, E4M3::widen, E4M3::narrow},
    {"e5m2", DType::kF8E5M2, 15, 2, 0x7b, 65536, 0x7c, E5M2::widen, E5M2::narrow}};

double value_of(const Definition& of, int code) {
    const double sign = (code & 0x80) != 0 ? -1 : 1;
    const int magnitude = code & 0x7f, one = 1 << of.mantissa_bits;
    if (magnitude > of.largest)
        return magnitude == 0x7c && of.overflow == 0x7c ? sign * kDoubleInfinity : NAN;
    const int exponent = magnitude / one, mantissa = magnitude % one;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - of.bias - of.mantissa_bits);
    return sign * std::ldexp(one + mantissa, exponent - of.bias - of.mantissa_bits);
}

// Of all codes; searched for each result, so worked out once.
const std::array<double, 256>& values_of(const Definition& of) {
    static const auto kTables = [] {
        std::array<std::array<double, 256>, 2> tables{};
        for (int i = 0; i < 2; ++i) {
            for (int code = 0; code < 256; ++code)
                tables[i][code] = value_of(kDefinitions[i], code);
        }
        return tables;
    }();
    return kTables[&of - kDefinitions];
}

// The code of the nearest number, of two equally near the even one.
int nearest(const Definition& of, double value) {
    if (std::isnan(value)) return 0x7f;
    const int sign = std::signbit(value) ? 0x80 : 0;
    const double size = std::fabs(value);
    int best = of.largest + 1;
    double distance = std::fabs(size - of.beyond);
    if (std::isinf(size)) distance = 0;
    const auto& values = values_of(of);
    for (int code = of.largest; code >= 0; --code) {
        const double here = std::fabs(size - values[code]);
        if (here < distance || (here == distance && code % 2 == 0)) best = code, distance = here;
    }
    if (best <= of.largest) return sign | best;
    return of.overflow == 0x7f ? 0x7f : sign | of.overflow;
}

float combined(float a, float b, ReduceOp op) {
    if (op == ReduceOp::kSum) return a + b;
    if (op == ReduceOp::kAvg) return (a + b) / 2;
    if (op == ReduceOp::kProd) return a * b;
    if (std::isnan(a) || std::isnan(b)) return NAN;
    const bool a_first = a < b || (a == b && std::signbit(a));
    return a_first == (op == ReduceOp::kMin) ? a : b;
}

// Every code with every other.
struct Pairs {
    std::vector<std::uint8_t> a, b;
    Pairs() : a(65536), b(65536) {
        for (std::size_t i = 0; i < a.size(); ++i) {
            a[i] = static_cast<std::uint8_t>(i & 0xff);
            b[i] = static_cast<std::uint8_t>(i >> 8);
        }
    }
    std::vector<std::uint8_t> expected(const Definition& of, ReduceOp op) const {
        std::vector<std::uint8_t> results(a.size());
        for (std::size_t i = 0; i < results.size(); ++i) {
            const auto x = static_cast<float>(values_of(of)[a[i]]);
            const auto y = static_cast<float>(values_of(of)[b[i]]);
            results[i] = static_cast<std::uint8_t>(nearest(of, combined(x, y, op)));
        }
        return results;
    }
    std::vector<std::uint8_t> reduced(const Definition& of, ReduceOp op,
                                      const kernels::KernelSet& set) const {
        std::vector<std::uint8_t> results(a.size());
        const void* sources[] = {a.data(), b.data()};
        void* destination = results.data();
        kernels::reduce_with(set, {of.type, op, sources, 2, &destination, 1, a.size(), 2});
        return results;
    }
};

}  // namespace

TEST_SUITE("kernels.float8") {
    TEST_CASE("every 8-bit float widens to the value its bits define and narrows back") {
        for (const Definition& of : kDefinitions) {
            CAPTURE(of.name);
            for (int code = 0; code < 256; ++code) {
                CAPTURE(code);
                const double value = value_of(of, code);
                const auto bits = static_cast<std::uint8_t>(code);
                if (std::isnan(value)) {
                    CHECK(std::isnan(of.widen(bits)));
                    CHECK(of.narrow(of.widen(bits)) == 0x7f);
                } else {
                    CHECK(static_cast<double>(of.widen(bits)) == value);
                    CHECK(std::signbit(of.widen(bits)) == std::signbit(value));
                    CHECK(of.narrow(of.widen(bits)) == code);
                }
            }
        }
    }

    TEST_CASE("what lies between two 8-bit floats goes to the nearer, a tie to the even one") {
        for (const Definition& of : kDefinitions) {
            CAPTURE(of.name);
            int wrong = 0;
            for (int code = 0; code <= of.largest; ++code) {
                const double next = code == of.largest ? of.beyond : value_of(of, code + 1);
                const auto middle = static_cast<float>((value_of(of, code) + next) / 2);
                for (const float size :
                     {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e30f)}) {
                    wrong += of.narrow(size) != nearest(of, size);
                    wrong += of.narrow(-size) != nearest(of, -size);
                }
            }
            CHECK(wrong == 0);
        }
    }

    TEST_CASE("what is too large becomes NaN in e4m3fn, and infinity in e5m2") {
        CHECK(E4M3::narrow(464.0f) == 0x7e);  // a tie, and 448 is the even one
        CHECK(E4M3::narrow(464.1f) == 0x7f);
        CHECK(E4M3::narrow(-464.1f) == 0x7f);
        CHECK(E4M3::narrow(-INFINITY) == 0x7f);
        CHECK(E5M2::narrow(61439.0f) == 0x7b);
        CHECK(E5M2::narrow(61440.0f) == 0x7c);
        CHECK(E5M2::narrow(-3e38f) == 0xfc);
        CHECK(E5M2::narrow(-1e-30f) == 0x80);
    }

    TEST_CASE("any two 8-bit floats give the nearest to their f32 result, on every set") {
        const Pairs pairs;
        for (const Definition& of : kDefinitions) {
            CAPTURE(of.name);
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin,
                                      ReduceOp::kMax, ReduceOp::kProd}) {
                CAPTURE(static_cast<int>(op));
                const auto expected = pairs.expected(of, op);
                for (int i = 0; kernels::kernel_set(i) != nullptr; ++i) {
                    const kernels::KernelSet& set = *kernels::kernel_set(i);
                    CAPTURE(set.name);
                    if (set.available()) CHECK((pairs.reduced(of, op, set) == expected));
                }
            }
        }
    }

    TEST_CASE("8-bit floats accumulate in f32 and round once") {
        const kernels::KernelSet& set = *kernels::kernel_set(0);
        const std::uint8_t values[] = {E4M3::narrow(16), E4M3::narrow(1), E4M3::narrow(1),
                                       E4M3::narrow(1)};
        // 16 + 1 is a tie in e4m3fn and would be lost each time; in f32 it is not.
        const void* sources[] = {&values[0], &values[1], &values[2], &values[3]};
        std::uint8_t sum = 0;
        void* destination = &sum;
        kernels::reduce_with(set, {DType::kF8E4M3, ReduceOp::kSum, sources, 4, &destination, 1, 1});
        CHECK(sum == E4M3::narrow(20));  // 19: a tie to even
    }
}

#include "kernels/cpu/half.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>

using namespace kernels;

namespace {

// The value of a 16-bit float by its definition, in double, where every one is exact.
double value_of(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct Format {
    const char* name;
    int exponent_bits, mantissa_bits;
    float (*widen)(std::uint16_t);
    std::uint16_t (*narrow)(float);
    std::uint16_t infinity, nan;
};

constexpr Format kFormats[] = {{"f16", 5, 10, f16_to_f32, f32_to_f16, 0x7c00, kNanF16},
                               {"bf16", 8, 7, bf16_to_f32, f32_to_bf16, 0x7f80, kNanBF16}};

double value_in(const Format& format, std::uint16_t bits) {
    return value_of(bits, format.exponent_bits, format.mantissa_bits);
}

// Whether every f32 around the middle between two neighbours goes to the right one. `upper` may be
// infinity, whose place is then the next power of two.
bool rounds_right_between(const Format& format, std::uint16_t lower, double step) {
    const auto upper = static_cast<std::uint16_t>(lower + 1);
    const double low = value_in(format, lower);
    const auto middle = static_cast<float>(low + step / 2);
    const std::uint16_t even = (lower & 1) == 0 ? lower : upper;
    const float below = std::nextafter(middle, 0.0f), above = std::nextafter(middle, INFINITY);
    for (const std::uint16_t sign : {0x0000, 0x8000}) {
        const float factor = sign != 0 ? -1.0f : 1.0f;
        if (format.narrow(factor * middle) != (even | sign)) return false;
        if (format.narrow(factor * below) != (lower | sign)) return false;
        if (format.narrow(factor * above) != (upper | sign)) return false;
    }
    return true;
}

}  // namespace

TEST_SUITE("kernels.half") {
    TEST_CASE("every 16-bit float widens to the value its bits define and narrows back") {
        for (const Format& format : kFormats) {
            CAPTURE(format.name);
            int wrong = 0;
            for (unsigned i = 0; i < 65536; ++i) {
                const auto bits = static_cast<std::uint16_t>(i);
                const double value = value_in(format, bits);
                const float wide = format.widen(bits);
                if (std::isnan(value)) {
                    wrong += !std::isnan(wide) || format.narrow(wide) != format.nan;
                } else {
                    wrong += static_cast<double>(wide) != value || format.narrow(wide) != bits;
                }
            }
            CHECK(wrong == 0);
        }
    }

    TEST_CASE("what lies between two 16-bit floats goes to the nearer, a tie to the even one") {
        for (const Format& format : kFormats) {
            CAPTURE(format.name);
            int wrong = 0;
            for (std::uint16_t lower = 0; lower < format.infinity; ++lower) {
                const bool last = lower + 1 == format.infinity;
                const double step =
                    last ? value_in(format, lower) -
                               value_in(format, static_cast<std::uint16_t>(lower - 1))
                         : value_in(format, static_cast<std::uint16_t>(lower + 1)) -
                               value_in(format, lower);
                wrong += !rounds_right_between(format, lower, step);
            }
            CHECK(wrong == 0);
        }
    }

    TEST_CASE("what is too large becomes infinity and what is too small a zero of its sign") {
        CHECK(f32_to_f16(65519.996f) == 0x7bff);
        CHECK(f32_to_f16(65520.0f) == 0x7c00);
        CHECK(f32_to_f16(-3e38f) == 0xfc00);
        CHECK(f32_to_f16(-1e-30f) == 0x8000);
        CHECK(f32_to_f16(std::ldexp(1.0f, -25)) == 0x0000);  // a tie with zero, which is even
        CHECK(f32_to_bf16(3.4e38f) == 0x7f80);
        CHECK(f32_to_bf16(-bits_as<float>(1u)) == 0x8000);
    }
}

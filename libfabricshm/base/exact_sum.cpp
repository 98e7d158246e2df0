#include "libfabricshm/base/exact_sum.hpp"

#include <bit>
#include <cmath>

#include "libfabricshm/base/check.hpp"

namespace fabricshm {

namespace {

constexpr int kMantissaBits = 52;
constexpr std::uint64_t kMantissa = (std::uint64_t{1} << kMantissaBits) - 1;
constexpr int kLowestExponent = -1074;  // of bit 0 of word 0

}  // namespace

void ExactSum::add(double value) noexcept {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t exponent = bits >> kMantissaBits;
    FABRIC_CHECK(exponent < 0x7ff);  // finite, and without a sign
    // A denormal has no leading one, and the same places as the smallest normal numbers.
    const std::uint64_t mantissa =
        (bits & kMantissa) | (exponent != 0 ? std::uint64_t{1} << kMantissaBits : 0);
    const int place = exponent == 0 ? 0 : static_cast<int>(exponent) - 1;
    const int word = place / 64;
    const int shift = place % 64;
    const std::uint64_t low = mantissa << shift;
    const std::uint64_t high = shift > 64 - kMantissaBits - 1 ? mantissa >> (64 - shift) : 0;
    const auto at = static_cast<std::size_t>(word);
    words_[at] += low;
    if (words_[at] < low) carry_into(word + 1);
    words_[at + 1] += high;
    if (words_[at + 1] < high) carry_into(word + 2);
}

void ExactSum::carry_into(int word) noexcept {
    for (; word < kWords; ++word) {
        if (++words_[static_cast<std::size_t>(word)] != 0) return;
    }
}

void ExactSum::add(const ExactSum& other) noexcept {
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < words_.size(); ++i) {
        const std::uint64_t sum = words_[i] + other.words_[i];
        const std::uint64_t all = sum + carry;
        carry = (sum < words_[i] ? 1u : 0u) | (all < sum ? 1u : 0u);
        words_[i] = all;
    }
}

double ExactSum::value() const noexcept {
    int top = kWords - 1;
    while (top >= 0 && words_[static_cast<std::size_t>(top)] == 0) --top;
    if (top < 0) return 0;
    // The 64 bits from the highest one down, and whether anything is below them: enough to round.
    const std::uint64_t high = words_[static_cast<std::size_t>(top)];
    const int lead = std::countl_zero(high);
    const std::uint64_t next = top > 0 ? words_[static_cast<std::size_t>(top - 1)] : 0;
    std::uint64_t window = high << lead | (lead > 0 ? next >> (64 - lead) : 0);
    bool below = lead > 0 ? next << lead != 0 : next != 0;
    for (int i = 0; i < top - 1; ++i) below = below || words_[static_cast<std::size_t>(i)] != 0;
    int exponent = kLowestExponent + 64 * top - lead;  // of bit 0 of the window
    // A result without a leading one has fewer places.
    int drop = 64 - kMantissaBits - 1;
    if (exponent + drop < kLowestExponent) drop = kLowestExponent - exponent;
    if (drop > 0 && drop < 64) {
        const std::uint64_t rest = window << (64 - drop);
        const std::uint64_t half = std::uint64_t{1} << 63;
        window >>= drop;
        const bool up = rest > half || (rest == half && (below || (window & 1) != 0));
        if (up) ++window;
        exponent += drop;
    }
    return std::ldexp(static_cast<double>(window), exponent);
}

}  // namespace fabricshm

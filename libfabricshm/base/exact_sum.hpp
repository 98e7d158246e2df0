// ExactSum: a sum of doubles that are not negative, without rounding: it does not depend on the
// order, so that parts of it can be added up by any number of ranks.

#pragma once

#include <array>
#include <cstdint>

namespace fabricshm {

/// A fixed-point number with a place for every bit of a double, and 64 bits above the largest:
/// 2^64 additions cannot overflow it.
class ExactSum {
  public:
    /// From 2^-1074, the lowest bit of a double, to 2^1024 and above.
    static constexpr int kWords = 34;
    using Words = std::array<std::uint64_t, kWords>;

    ExactSum() = default;
    explicit ExactSum(const Words& words) noexcept : words_(words) {}

    /// `value` is finite and not negative (a bug otherwise). Some 5 ns.
    void add(double value) noexcept;
    void add(const ExactSum& other) noexcept;

    /// The sum, rounded to nearest even once; infinity when it is beyond the largest double.
    double value() const noexcept;

    const Words& words() const noexcept { return words_; }

  private:
    void carry_into(int word) noexcept;

    Words words_{};
};

}  // namespace fabricshm

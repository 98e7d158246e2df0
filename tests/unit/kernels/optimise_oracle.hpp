// Optimiser steps in float64, one element at a time, from the formulas as they are published: what
// the kernels have to come near to. Shares nothing with them but the options.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/optimise.hpp"

namespace kernels_test {

/// A 16-bit float's value from its definition: sign, exponent, mantissa.
inline double half_value(std::uint16_t code, int exponent_bits) {
    const int mantissa_bits = 15 - exponent_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const double sign = (code & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                         : sign * std::ldexp(1 + fraction, exponent - bias);
}

/// One element's parameter and states.
struct OracleElement {
    double theta = 0, m = 0, v = 0, largest = 0;
};

/// Step number `t`, from 1, of one element with merged gradient `g`.
inline void oracle_step(kernels::Rule rule, const kernels::Hyper& h, int t, double g,
                        OracleElement& e) {
    if (h.maximize) g = -g;
    if (rule == kernels::Rule::kSgd) {
        g += h.weight_decay * e.theta;
        if (h.momentum == 0) {
            e.theta -= h.learning_rate * g;
            return;
        }
        e.m = t == 1 ? g : h.momentum * e.m + (1 - h.dampening) * g;
        e.theta -= h.learning_rate * (h.nesterov ? g + h.momentum * e.m : e.m);
        return;
    }
    if (rule == kernels::Rule::kAdam) {
        g += h.weight_decay * e.theta;
    } else {
        e.theta -= h.learning_rate * h.weight_decay * e.theta;
    }
    e.m = h.beta1 * e.m + (1 - h.beta1) * g;
    const bool belief = rule == kernels::Rule::kAdaBelief || rule == kernels::Rule::kMaxAdaBelief;
    const double deviation = belief ? g - e.m : g;
    e.v = h.beta2 * e.v + (1 - h.beta2) * deviation * deviation + (belief ? h.epsilon : 0);
    const double m_hat = e.m / (1 - std::pow(h.beta1, t));
    double v_hat = e.v / (1 - std::pow(h.beta2, t));
    if (rule == kernels::Rule::kMaxAdaBelief) v_hat = e.largest = std::max(e.largest, v_hat);
    e.theta -= h.learning_rate * m_hat / (std::sqrt(v_hat) + h.epsilon);
}

/// The 16-bit float next to `value`, of two equally near ones the one with an even mantissa: by
/// search among all of them.
class NearestHalf {
  public:
    explicit NearestHalf(int exponent_bits) {
        for (std::uint32_t code = 0; code < 0x8000; ++code) {
            const double at = half_value(static_cast<std::uint16_t>(code), exponent_bits);
            if (!std::isfinite(at)) break;
            values_.push_back(at);
        }
        // What an infinity would be worth were it a number: the next one of the largest exponent.
        const std::size_t last = values_.size() - 1;
        values_.push_back(2 * values_[last] - values_[last - 1]);
    }

    std::uint16_t operator()(double value) const {
        const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
        const double magnitude = std::abs(value);
        const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
        if (above == values_.end()) return sign | static_cast<std::uint16_t>(values_.size() - 1);
        auto code = static_cast<std::uint16_t>(above - values_.begin());
        if (*above == magnitude) return sign | code;
        const double up = *above - magnitude, down = magnitude - *(above - 1);
        const bool is_even = code % 2 == 0;
        if (down < up || (down == up && !is_even)) --code;
        return sign | code;
    }

  private:
    std::vector<double> values_;
};

}  // namespace kernels_test

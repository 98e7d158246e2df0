#include "kernels/resize.hpp"

#include <algorithm>
#include <cmath>

namespace kernels {

namespace {

// Pixels that one output is made of, in one direction: half the triangle's foot, in inputs.
double reach_of(std::int32_t inputs, std::int32_t outputs) noexcept {
    return std::max(static_cast<double>(inputs) / outputs, 1.0);
}

double triangle(double x) noexcept {
    const double distance = std::fabs(x);
    return distance < 1.0 ? 1.0 - distance : 0.0;
}

}  // namespace

std::int32_t resize_taps(std::int32_t inputs, std::int32_t outputs) noexcept {
    return static_cast<std::int32_t>(std::ceil(reach_of(inputs, outputs))) * 2 + 1;
}

// In this order of operations, so that the weights are Pillow's to the last bit.
void fill_resize_axis(std::int32_t inputs, std::int32_t outputs, std::int32_t from, double* work,
                      ResizeAxis& axis) noexcept {
    const double scale = static_cast<double>(inputs) / outputs;
    const double reach = reach_of(inputs, outputs);
    const double narrowing = 1.0 / reach;
    for (std::int32_t output = 0; output < axis.outputs; ++output) {
        const double centre = (from + output + 0.5) * scale;
        const auto first = std::max(static_cast<std::int32_t>(centre - reach + 0.5), 0);
        const auto end = std::min(static_cast<std::int32_t>(centre + reach + 0.5), inputs);
        double sum = 0.0;
        for (std::int32_t input = first; input < end; ++input) {
            work[input - first] = triangle((input - centre + 0.5) * narrowing);
            sum += work[input - first];
        }
        std::int32_t* const weights = axis.weights + std::ptrdiff_t{output} * axis.taps;
        for (std::int32_t tap = 0; tap < end - first; ++tap) {
            const double weight = sum != 0.0 ? work[tap] / sum : work[tap];
            weights[tap] = static_cast<std::int32_t>(0.5 + weight * (1 << kResizeBits));
        }
        axis.first[output] = first;
        axis.count[output] = end - first;
    }
}

}  // namespace kernels

// Resizing as plain loops, which each instruction set compiles for itself: resize_scalar.cpp and
// resize_avx2.cpp. Nothing of the standard library is called, see reduce_avx2.cpp.

#pragma once

#include <cstddef>

#include "kernels/resize.hpp"

namespace kernels {
namespace {

constexpr std::int32_t kHalf = 1 << (kResizeBits - 1);

// Weights of a triangle are not negative and add up to 1, but for rounding: above 255 comes by that
// alone.
inline std::uint8_t byte_of(std::int32_t sum) noexcept {
    const std::int32_t byte = sum >> kResizeBits;
    return static_cast<std::uint8_t>(byte < 255 ? byte : 255);
}

// One channel count at a time: the inner loops have no other bound that is not known.
template <int channels>
void resize_row(const std::uint8_t* source, const ResizeAxis& axis,
                std::uint8_t* destination) noexcept {
    for (std::int32_t output = 0; output < axis.outputs; ++output) {
        const std::int32_t* const weights = axis.weights + std::ptrdiff_t{output} * axis.taps;
        const std::uint8_t* pixel = source + std::ptrdiff_t{axis.first[output]} * channels;
        std::int32_t sums[channels];
        for (std::int32_t& sum : sums) sum = kHalf;
        for (std::int32_t tap = 0; tap < axis.count[output]; ++tap, pixel += channels) {
            for (int channel = 0; channel < channels; ++channel) {
                sums[channel] += pixel[channel] * weights[tap];
            }
        }
        for (const std::int32_t sum : sums) *destination++ = byte_of(sum);
    }
}

template <int channels>
void resize_each_row(const ResizeJob& job, const ResizeAxis& axis) noexcept {
    const std::ptrdiff_t from = std::ptrdiff_t{job.width} * channels;
    const std::ptrdiff_t to = std::ptrdiff_t{axis.outputs} * channels;
    for (std::ptrdiff_t row = 0; row < job.rows; ++row) {
        resize_row<channels>(job.source + row * from, axis, job.destination + row * to);
    }
}

void rows_of(const ResizeJob& job, const ResizeAxis& axis) noexcept {
    switch (job.channels) {
        case 1:
            return resize_each_row<1>(job, axis);
        case 2:
            return resize_each_row<2>(job, axis);
        case 3:
            return resize_each_row<3>(job, axis);
        default:
            return resize_each_row<4>(job, axis);
    }
}

// All bytes of a row have one weight: the loops over them become vectors.
void columns_of(const ResizeJob& job, const ResizeAxis& axis, std::int32_t skipped,
                std::int32_t* __restrict sums) noexcept {
    const std::ptrdiff_t bytes = std::ptrdiff_t{job.width} * job.channels;
    for (std::int32_t output = 0; output < axis.outputs; ++output) {
        const std::int32_t* const weights = axis.weights + std::ptrdiff_t{output} * axis.taps;
        for (std::ptrdiff_t at = 0; at < bytes; ++at) sums[at] = kHalf;
        for (std::int32_t tap = 0; tap < axis.count[output]; ++tap) {
            const std::int32_t weight = weights[tap];
            const std::uint8_t* __restrict row =
                job.source + (axis.first[output] - skipped + tap) * bytes;
            for (std::ptrdiff_t at = 0; at < bytes; ++at) sums[at] += row[at] * weight;
        }
        std::uint8_t* __restrict const destination = job.destination + output * bytes;
        for (std::ptrdiff_t at = 0; at < bytes; ++at) destination[at] = byte_of(sums[at]);
    }
}

}  // namespace
}  // namespace kernels

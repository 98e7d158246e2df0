// A channel has 256 values, so a table has all that can come of it: the bits are those of the
// formula whatever it costs, and a pixel costs a read of the first-level cache.

#include "kernels/pixels.hpp"

#include <cstdlib>

#include "kernels/cpu/half.hpp"

namespace kernels {

namespace {

template <typename Element>
void map_planes(const PixelJob& job) noexcept {
    const auto* const tables = static_cast<const Element*>(job.tables);
    auto* to = static_cast<Element*>(job.destination);
    const std::ptrdiff_t plane = std::ptrdiff_t{job.height} * job.width;
    for (std::int32_t row = 0; row < job.height; ++row) {
        const std::uint8_t* from = job.source + row * job.row_stride;
        for (std::int32_t column = 0; column < job.width; ++column, from += job.pixel_stride) {
            for (std::int32_t channel = 0; channel < job.channels; ++channel) {
                to[channel * plane + column] = tables[channel * kPixelValues + from[channel]];
            }
        }
        to += job.width;
    }
}

template <typename Element>
void map_packed(const PixelJob& job) noexcept {
    const auto* const tables = static_cast<const Element*>(job.tables);
    auto* to = static_cast<Element*>(job.destination);
    for (std::int32_t row = 0; row < job.height; ++row) {
        const std::uint8_t* from = job.source + row * job.row_stride;
        for (std::int32_t column = 0; column < job.width; ++column, from += job.pixel_stride) {
            for (std::int32_t channel = 0; channel < job.channels; ++channel) {
                *to++ = tables[channel * kPixelValues + from[channel]];
            }
        }
    }
}

template <typename Element>
void map(const PixelJob& job) noexcept {
    job.planes ? map_planes<Element>(job) : map_packed<Element>(job);
}

}  // namespace

bool is_pixel_type(DType type) noexcept {
    return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

void fill_pixel_table(DType type, float mean, float deviation, void* table) noexcept {
    if (!is_pixel_type(type)) std::abort();
    for (int value = 0; value < kPixelValues; ++value) {
        const float number = (static_cast<float>(value) / 255.0F - mean) / deviation;
        if (type == DType::kF32) static_cast<float*>(table)[value] = number;
        if (type == DType::kF16) static_cast<std::uint16_t*>(table)[value] = f32_to_f16(number);
        if (type == DType::kBF16) static_cast<std::uint16_t*>(table)[value] = f32_to_bf16(number);
    }
}

void map_pixels(const PixelJob& job) noexcept {
    if (!is_pixel_type(job.type)) std::abort();
    job.type == DType::kF32 ? map<std::uint32_t>(job) : map<std::uint16_t>(job);
}

}  // namespace kernels

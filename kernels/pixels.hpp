// Pixels of 8 bits as numbers of a model: normalised, of another type, and in planes, in one pass.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.hpp"

namespace kernels {

inline constexpr int kPixelValues = 256;
inline constexpr int kPixelChannelsMax = 4;

/// Whether pixels can become numbers of it: f32, f16, bf16.
bool is_pixel_type(DType type) noexcept;

/// What each of the 256 values of a channel becomes: (value / 255 - mean) / deviation in f32, each
/// step rounded, as torchvision has it, then once to the type. `table` has kPixelValues elements.
void fill_pixel_table(DType type, float mean, float deviation, void* table) noexcept;

/// Strides are in bytes and may be negative: a picture that is cropped or flipped is one whose
/// strides and start are others.
struct PixelJob {
    DType type = DType::kF32;
    const std::uint8_t* source = nullptr;  // its first pixel
    std::ptrdiff_t row_stride = 0;
    std::ptrdiff_t pixel_stride = 0;
    std::int32_t height = 0;
    std::int32_t width = 0;
    std::int32_t channels = 0;     // 1 to kPixelChannelsMax, next to each other
    const void* tables = nullptr;  // [channels][kPixelValues] elements
    void* destination = nullptr;   // height * width * channels elements
    bool planes = true;            // channel after channel; else pixel after pixel
};

/// Pure, thread-safe, no allocation. A type that is none of is_pixel_type() is a bug of the caller
/// and aborts.
void map_pixels(const PixelJob& job) noexcept;

}  // namespace kernels

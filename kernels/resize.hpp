// Pictures of 8 bits to another size, with the bits that Pillow's BILINEAR gives: each output is a
// mean of the inputs below a triangle, which is wider than two pixels where a picture gets smaller
// (antialias). First along the rows, then along the columns, rounded to 8 bits in between.

#pragma once

#include <cstddef>
#include <cstdint>

namespace kernels {

/// Of the weights: a sum of products with pixels stays below 2^31.
inline constexpr int kResizeBits = 22;

/// Which inputs make each output of one direction, and with which weight. The memory is the
/// caller's.
struct ResizeAxis {
    std::int32_t outputs = 0;
    std::int32_t taps = 0;            // room of each output in `weights`
    std::int32_t* first = nullptr;    // [outputs]: its first input
    std::int32_t* count = nullptr;    // [outputs]: how many
    std::int32_t* weights = nullptr;  // [outputs][taps], of 2^kResizeBits
};

/// How many inputs one output has at most.
std::int32_t resize_taps(std::int32_t inputs, std::int32_t outputs) noexcept;

/// Fills `axis`, whose outputs are those from `from` on of `outputs` in all. `work` has
/// resize_taps() places.
void fill_resize_axis(std::int32_t inputs, std::int32_t outputs, std::int32_t from, double* work,
                      ResizeAxis& axis) noexcept;

/// Pixels of `channels` bytes (1 to 4) behind each other in rows of `width` pixels.
struct ResizeJob {
    const std::uint8_t* source = nullptr;
    std::uint8_t* destination = nullptr;
    std::int32_t rows = 0;      // of resize_rows(): of source and destination
    std::int32_t width = 0;     // of the source, in pixels
    std::int32_t channels = 0;  // of both
};

/// Each of one or more rows of the source becomes one of axis.outputs pixels. Pure, thread-safe, no
/// allocation.
void resize_rows(const ResizeJob& job, const ResizeAxis& axis) noexcept;

/// The rows become axis.outputs rows of the same width; the source begins with row `skipped` of
/// those that the axis speaks of. `sums` has width * channels places.
void resize_columns(const ResizeJob& job, const ResizeAxis& axis, std::int32_t skipped,
                    std::int32_t* sums) noexcept;

}  // namespace kernels

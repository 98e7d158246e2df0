#include <cstring>

#include "kernels/cpu/kernel_set.hpp"

// From here on for this instruction set only, see reduce_avx2.cpp.
#include "kernels/cpu/isa_avx2.hpp"

#include "kernels/cpu/resize_body.hpp"

namespace kernels {

namespace {

// A register has the channels of one pixel. Of three it reads and writes one byte beyond: the next
// pixel's, or the next row's, which is written after it. Hence not for the last row.
template <int channels>
void resize_wide_row(const std::uint8_t* source, const ResizeAxis& axis,
                     std::uint8_t* destination) noexcept {
    for (std::int32_t output = 0; output < axis.outputs; ++output, destination += channels) {
        const std::int32_t* const weights = axis.weights + std::ptrdiff_t{output} * axis.taps;
        const std::uint8_t* pixel = source + std::ptrdiff_t{axis.first[output]} * channels;
        __m128i sums = _mm_set1_epi32(kHalf);
        for (std::int32_t tap = 0; tap < axis.count[output]; ++tap, pixel += channels) {
            std::int32_t bytes;
            std::memcpy(&bytes, pixel, sizeof bytes);
            const __m128i values = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes));
            sums = _mm_add_epi32(sums, _mm_mullo_epi32(values, _mm_set1_epi32(weights[tap])));
        }
        // Packing ends at 255, as byte_of() does.
        const __m128i shifted = _mm_srai_epi32(sums, kResizeBits);
        const __m128i words = _mm_packus_epi32(shifted, shifted);
        const std::int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
        std::memcpy(destination, &bytes, sizeof bytes);
    }
}

template <int channels>
void resize_wide_rows(const ResizeJob& job, const ResizeAxis& axis) noexcept {
    const std::ptrdiff_t from = std::ptrdiff_t{job.width} * channels;
    const std::ptrdiff_t to = std::ptrdiff_t{axis.outputs} * channels;
    const std::ptrdiff_t last = job.rows - 1;
    for (std::ptrdiff_t row = 0; row < last; ++row) {
        resize_wide_row<channels>(job.source + row * from, axis, job.destination + row * to);
    }
    resize_row<channels>(job.source + last * from, axis, job.destination + last * to);
}

void wide_rows_of(const ResizeJob& job, const ResizeAxis& axis) noexcept {
    switch (job.channels) {
        case 3:
            return resize_wide_rows<3>(job, axis);
        case 4:
            return resize_wide_rows<4>(job, axis);
        default:
            return rows_of(job, axis);
    }
}

}  // namespace

constexpr ResizeTable kResizeAvx2 = {wide_rows_of, columns_of};

}  // namespace kernels

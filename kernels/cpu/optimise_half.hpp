// f16 for the tiles of optimiser steps, by the instructions of AVX2's F16C. Included behind
// isa_*.hpp; see vector.hpp.

#pragma once

namespace kernels {
namespace {

struct Half {
    [[gnu::always_inline]] static void widen(float* to, const std::uint16_t* from,
                                             std::size_t count) {
        std::size_t i = 0;
        for (; i + 8 <= count; i += 8) {
            const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
        }
        for (; i < count; ++i) to[i] = _cvtsh_ss(from[i]);
    }
    [[gnu::always_inline]] static void narrow(std::uint16_t* to, const float* from,
                                              std::size_t count) {
        std::size_t i = 0;
        for (; i + 8 <= count; i += 8) {
            const __m128i halves =
                _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
        }
        for (; i < count; ++i) to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
    }
};

}  // namespace
}  // namespace kernels

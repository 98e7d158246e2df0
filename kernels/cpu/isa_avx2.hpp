// AVX2 with F16C. Included after all other headers: from here to the end of the file everything is
// compiled for this instruction set. See vector.hpp.

#pragma once

#include <immintrin.h>

#include <cstddef>

// Never undone, because templates are compiled at the end of the file.
#pragma GCC target("avx2,f16c")

namespace kernels {
namespace {

struct Isa {
    static constexpr std::size_t kBytes = 32;

    // Aligned to the register: the caller asks at_line() before.
    template <class V>
    [[gnu::always_inline]] static void stream(char* to, V value) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
    }
    [[gnu::always_inline]] static __m256 widen_f16(const char* from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    [[gnu::always_inline]] static __m256 root(__m256 value) { return _mm256_sqrt_ps(value); }
    [[gnu::always_inline]] static __m256i narrow_f16(__m256 low, __m256 high) {
        // Lane order: `low` ends in the lower half, as the elements came.
        return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
                                _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    }
};

}  // namespace
}  // namespace kernels

// AVX-512 F, BW, DQ and VL, in full-width registers. Included after all other headers: from here to
// the end of the file everything is compiled for this instruction set. See vector.hpp.

#pragma once

// GCC 12 takes the deliberately undefined operands inside its own intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include <cstddef>

// Never undone, because templates are compiled at the end of the file.
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")

namespace kernels {
namespace {

struct Isa {
    static constexpr std::size_t kBytes = 64;

    template <class V>
    [[gnu::always_inline]] static void stream(char* to, V value) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
    }
    [[gnu::always_inline]] static __m512 widen_f16(const char* from) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    [[gnu::always_inline]] static __m512 root(__m512 value) { return _mm512_sqrt_ps(value); }
    [[gnu::always_inline]] static __m512i narrow_f16(__m512 low, __m512 high) {
        const __m256i first = _mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT);
        const __m256i second = _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT);
        return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
    }
};

}  // namespace
}  // namespace kernels

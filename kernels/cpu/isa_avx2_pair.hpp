// Registers of 64 bytes that the compiler makes of two AVX2 ones: the tests run the vector kernels
// at that width with it, on processors without AVX-512. Included like isa_avx2.hpp, in place of it.

#pragma once

#include <immintrin.h>

#include <cstddef>

#pragma GCC target("avx2,f16c")

namespace kernels {
namespace {

struct Isa {
    static constexpr std::size_t kBytes = 64;
    typedef float Wide __attribute__((vector_size(64)));

    template <class V>
    [[gnu::always_inline]] static void stream(char* to, V value) {
        __m256i half[2];
        __builtin_memcpy(half, &value, sizeof half);
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), half[0]);
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), half[1]);
    }
    [[gnu::always_inline]] static Wide root(Wide value) {
        __m256 half[2];
        __builtin_memcpy(half, &value, sizeof half);
        half[0] = _mm256_sqrt_ps(half[0]);
        half[1] = _mm256_sqrt_ps(half[1]);
        __builtin_memcpy(&value, half, sizeof half);
        return value;
    }
    [[gnu::always_inline]] static Wide widen_f16(const char* from) {
        Wide result;
        for (int i = 0; i < 2; ++i) {
            const auto* half = reinterpret_cast<const __m128i*>(from + 16 * i);
            const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(half));
            __builtin_memcpy(reinterpret_cast<char*>(&result) + 32 * i, &wide, sizeof wide);
        }
        return result;
    }
    [[gnu::always_inline]] static Wide narrow_f16(Wide first, Wide second) {
        Wide result;
        __m256 from[4];
        __builtin_memcpy(from, &first, sizeof first);
        __builtin_memcpy(from + 2, &second, sizeof second);
        for (int i = 0; i < 4; ++i) {
            const __m128i half = _mm256_cvtps_ph(from[i], _MM_FROUND_TO_NEAREST_INT);
            __builtin_memcpy(reinterpret_cast<char*>(&result) + 16 * i, &half, sizeof half);
        }
        return result;
    }
};

}  // namespace
}  // namespace kernels

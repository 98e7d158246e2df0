#include "bench/memory_moves.hpp"

namespace bench {

const MemoryMoves& memory_moves() {
    // Asked once, of the processor and not of the compiler: the same binary runs on all of them.
    static const MemoryMoves& widest = __builtin_cpu_supports("avx512f") ? detail::kMovesAvx512
                                       : __builtin_cpu_supports("avx2")  ? detail::kMovesAvx2
                                                                         : detail::kMovesBase;
    return widest;
}

}  // namespace bench

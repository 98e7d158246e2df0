// The loops of memory_moves.hpp over vectors of one width. Included by one file per instruction
// set, after its target pragma, into that file's unnamed namespace: no copy can leak into another.

#pragma once

namespace bench {
namespace {

template <class Vector>
struct Moves {
    static constexpr std::size_t kLanes = Vector::kLanes;

    /// Four vectors at a time hide the latency of one.
    static constexpr std::size_t kBlock = 4 * kLanes;  // elements per turn of a loop

    /// Counts known when compiled: the inner loops unroll, and the sources stay in registers.
    template <int kSources, int kDestinations, bool kStreaming>
    static void move_fixed(const Move& m) {
        // Streaming stores need aligned addresses; the arena's and the parts' are.
        std::size_t i = 0;
        for (; i + kBlock <= m.count; i += kBlock) {
            typename Vector::Type sum[4];
            for (int v = 0; v < 4; ++v) sum[v] = Vector::load(m.sources[0] + i + v * kLanes);
            for (int s = 1; s < kSources; ++s)
                for (int v = 0; v < 4; ++v) sum[v] += Vector::load(m.sources[s] + i + v * kLanes);
            for (int d = 0; d < kDestinations; ++d)
                for (int v = 0; v < 4; ++v)
                    Vector::template store<kStreaming>(m.destinations[d] + i + v * kLanes, sum[v]);
        }
        // What is left of the last block, element by element.
        for (; i < m.count; ++i) {
            float sum = m.sources[0][i];
            for (int s = 1; s < kSources; ++s) sum += m.sources[s][i];
            for (int d = 0; d < kDestinations; ++d) m.destinations[d][i] = sum;
        }
        if (kStreaming) Vector::fence();
    }

    template <int kSources, bool kStreaming>
    static void move_sources(const Move& m) {
        switch (m.destination_count) {
            case 1:
                return move_fixed<kSources, 1, kStreaming>(m);
            case 2:
                return move_fixed<kSources, 2, kStreaming>(m);
            case 3:
                return move_fixed<kSources, 3, kStreaming>(m);
            // Four is as many ranks as the limits are measured with.
            default:
                return move_fixed<kSources, 4, kStreaming>(m);
        }
    }

    template <bool kStreaming>
    static void move_streaming(const Move& m) {
        switch (m.source_count) {
            case 1:
                return move_sources<1, kStreaming>(m);
            case 2:
                return move_sources<2, kStreaming>(m);
            case 3:
                return move_sources<3, kStreaming>(m);
            default:
                return move_sources<4, kStreaming>(m);
        }
    }

    static bool is_aligned(const Move& m) {
        for (int d = 0; d < m.destination_count; ++d)
            if (reinterpret_cast<std::uintptr_t>(m.destinations[d]) % (kLanes * 4) != 0)
                return false;
        return true;
    }

    /// Unaligned destinations go through the cache, whatever was asked for: streaming stores would
    /// fault there.
    static void move(const Move& m) {
        if (m.streaming && is_aligned(m)) return move_streaming<true>(m);
        move_streaming<false>(m);
    }

    /// Returns something that depends on all that was read, or the compiler would read nothing.
    static float read(const float* from, std::size_t count) {
        typename Vector::Type sum[4] = {};
        for (std::size_t i = 0; i + kBlock <= count; i += kBlock)
            for (int v = 0; v < 4; ++v) sum[v] += Vector::load(from + i + v * kLanes);
        const typename Vector::Type all = sum[0] + sum[1] + sum[2] + sum[3];
        return all[0];
    }

    static void write(float* to, std::size_t count, bool streaming) {
        const typename Vector::Type zero = {};
        for (std::size_t i = 0; i + kLanes <= count; i += kLanes) {
            if (streaming)
                Vector::template store<true>(to + i, zero);
            else
                Vector::template store<false>(to + i, zero);
        }
        if (streaming) Vector::fence();
    }

    static void accumulate(float* to, const float* from, std::size_t count) {
        for (std::size_t i = 0; i + kLanes <= count; i += kLanes)
            Vector::template store<false>(to + i, Vector::load(to + i) + Vector::load(from + i));
    }

    /// Streaming: a triad's result is not read again.
    static void triad(float* to, const float* a, const float* b, std::size_t count) {
        for (std::size_t i = 0; i + kLanes <= count; i += kLanes)
            Vector::template store<true>(to + i, Vector::load(a + i) + 3.0f * Vector::load(b + i));
        Vector::fence();
    }
};

}  // namespace
}  // namespace bench

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
    template <int kSources, int kDestinations, int kVectors, bool kStreaming, bool kPrefetch>
    static void move_fixed(const Move& m) {
        constexpr std::size_t kTile = kVectors * kLanes;  // elements per turn of the loop
        // Copies: a store through a pointer to anything could change what `m` points to.
        const float* from[kSources];
        float* to[kDestinations];
        for (int s = 0; s < kSources; ++s) from[s] = m.sources[s];
        for (int d = 0; d < kDestinations; ++d) to[d] = m.destinations[d];
        const std::size_t end = m.count;
        // Streaming stores need aligned addresses; the arena's and the parts' are.
        std::size_t i = 0;
        for (; i + kTile <= end; i += kTile) {
            // Behind the end, too: a hint that leads nowhere is ignored.
            for (int s = 0; kPrefetch && s < kSources; ++s)
                for (std::size_t line = 0; line < kTile * sizeof(float); line += 64)
                    __builtin_prefetch(reinterpret_cast<const char*>(from[s] + i) + line +
                                       m.prefetch);
            typename Vector::Type sum[kVectors];
            for (int v = 0; v < kVectors; ++v) sum[v] = Vector::load(from[0] + i + v * kLanes);
            for (int s = 1; s < kSources; ++s)
                for (int v = 0; v < kVectors; ++v) sum[v] += Vector::load(from[s] + i + v * kLanes);
            for (int d = 0; d < kDestinations; ++d)
                for (int v = 0; v < kVectors; ++v)
                    Vector::template store<kStreaming>(to[d] + i + v * kLanes, sum[v]);
        }
        // What is left of the last block, element by element.
        for (; i < end; ++i) {
            float sum = from[0][i];
            for (int s = 1; s < kSources; ++s) sum += from[s][i];
            for (int d = 0; d < kDestinations; ++d) to[d][i] = sum;
        }
        if (kStreaming) Vector::fence();
    }

    template <int kSources, int kVectors, bool kStreaming, bool kPrefetch>
    static void move_sources(const Move& m) {
        switch (m.destination_count) {
            case 1:
                return move_fixed<kSources, 1, kVectors, kStreaming, kPrefetch>(m);
            case 2:
                return move_fixed<kSources, 2, kVectors, kStreaming, kPrefetch>(m);
            case 3:
                return move_fixed<kSources, 3, kVectors, kStreaming, kPrefetch>(m);
            default:
                return move_fixed<kSources, 4, kVectors, kStreaming, kPrefetch>(m);
        }
    }

    // As move_fixed() of more ranks than it is made for: counts that are not known beforehand cost
    // little next to the memory of so many.
    template <int kVectors, bool kStreaming, bool kPrefetch>
    static void move_many(const Move& m) {
        constexpr std::size_t kTile = std::size_t{kVectors} * kLanes;
        const std::size_t end = m.count;
        std::size_t i = 0;
        for (; i + kTile <= end; i += kTile) {
            typename Vector::Type sum[kVectors];
            for (int v = 0; v < kVectors; ++v) sum[v] = Vector::load(m.sources[0] + i + v * kLanes);
            for (int s = 1; s < m.source_count; ++s) {
                const float* const from = m.sources[s] + i;
                for (int v = 0; v < kVectors; ++v) sum[v] += Vector::load(from + v * kLanes);
            }
            for (int s = 0; kPrefetch && s < m.source_count; ++s)
                for (std::size_t line = 0; line < kTile * sizeof(float); line += 64)
                    __builtin_prefetch(reinterpret_cast<const char*>(m.sources[s] + i) + line +
                                       m.prefetch);
            for (int d = 0; d < m.destination_count; ++d) {
                float* const to = m.destinations[d] + i;
                for (int v = 0; v < kVectors; ++v)
                    Vector::template store<kStreaming>(to + v * kLanes, sum[v]);
            }
        }
        for (; i < end; ++i) {
            float sum = m.sources[0][i];
            for (int s = 1; s < m.source_count; ++s) sum += m.sources[s][i];
            for (int d = 0; d < m.destination_count; ++d) m.destinations[d][i] = sum;
        }
        if (kStreaming) Vector::fence();
    }

    template <int kVectors, bool kStreaming, bool kPrefetch>
    static void move_counted(const Move& m) {
        if (m.source_count > kFixed || m.destination_count > kFixed)
            return move_many<kVectors, kStreaming, kPrefetch>(m);
        switch (m.source_count) {
            case 1:
                return move_sources<1, kVectors, kStreaming, kPrefetch>(m);
            case 2:
                return move_sources<2, kVectors, kStreaming, kPrefetch>(m);
            case 3:
                return move_sources<3, kVectors, kStreaming, kPrefetch>(m);
            default:
                return move_sources<4, kVectors, kStreaming, kPrefetch>(m);
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
        if (m.store == Store::kString) return move_string(m);
        const bool streams = m.store == Store::kStreaming && is_aligned(m);
        m.wide ? move_stored<8>(m, streams) : move_stored<4>(m, streams);
    }

    template <int kVectors>
    static void move_stored(const Move& m, bool streams) {
        if (m.prefetch != 0)
            return streams ? move_counted<kVectors, true, true>(m)
                           : move_counted<kVectors, false, true>(m);
        streams ? move_counted<kVectors, true, false>(m) : move_counted<kVectors, false, false>(m);
    }

    /// In pieces that stay in the first-level cache, where the sums are made.
    static void move_string(const Move& m) {
        constexpr std::size_t kPiece = 2048;  // elements
        alignas(64) float sums[kPiece];
        for (std::size_t at = 0; at < m.count; at += kPiece) {
            const float* sources[kMaxRanks];
            for (int s = 0; s < m.source_count; ++s) sources[s] = m.sources[s] + at;
            const std::size_t count = m.count - at < kPiece ? m.count - at : kPiece;
            float* to = sums;
            if (m.source_count > 1)
                move_counted<4, false, false>({sources, m.source_count, &to, 1, count});
            for (int d = 0; d < m.destination_count; ++d) {
                const void* from = m.source_count > 1 ? sums : sources[0];
                void* into = m.destinations[d] + at;
                std::size_t bytes = count * sizeof(float);
                asm volatile("rep movsb" : "+D"(into), "+S"(from), "+c"(bytes) : : "memory");
            }
        }
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

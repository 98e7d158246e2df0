// Copies by a grid's threads.

#pragma once

#include "kernels/cuda/gate_body.hpp"
#include "kernels/cuda/span_body.hpp"

namespace kernels::cuda {

namespace detail {

// Words of one size: what both addresses are aligned to alike decides it.
template <class Word, class Grid>
constexpr void copy_words(Grid& grid, Address to, Address from, std::uint64_t bytes,
                          Worker worker) {
    std::uint64_t head = (sizeof(Word) - from % sizeof(Word)) % sizeof(Word);
    if (head > bytes) head = bytes;
    const std::uint64_t words = (bytes - head) / sizeof(Word);
    const auto one = [&](std::uint64_t i) {
        grid.store(to + i, grid.template load<unsigned char>(from + i));
    };
    for (std::uint64_t i = worker.index; i < head; i += worker.count) one(i);
    // Four at a time, a worker's stride apart: their loads are under way together.
    constexpr std::uint64_t kTogether = 4;
    std::uint64_t w = worker.index;
    for (; w + (kTogether - 1) * worker.count < words; w += kTogether * worker.count) {
        Word moved[kTogether];
        for (std::uint64_t k = 0; k < kTogether; ++k) {
            const std::uint64_t at = head + (w + k * worker.count) * sizeof(Word);
            moved[k] = grid.template load<Word>(from + at);
        }
        for (std::uint64_t k = 0; k < kTogether; ++k) {
            grid.store(to + head + (w + k * worker.count) * sizeof(Word), moved[k]);
        }
    }
    for (; w < words; w += worker.count) {
        const std::uint64_t at = head + w * sizeof(Word);
        grid.store(to + at, grid.template load<Word>(from + at));
    }
    const std::uint64_t end = head + words * sizeof(Word);
    for (std::uint64_t i = end + worker.index; i < bytes; i += worker.count) one(i);
}

}  // namespace detail

/// All workers together copy the bytes. The memory does not overlap, or is the same: then nothing
/// is done.
template <class Grid>
constexpr void copy_span(Grid& grid, Address to, Address from, std::uint64_t bytes, Worker worker) {
    if (to == from) return;
    if (aligned_alike(to, from, 16)) {
        detail::copy_words<Vector16>(grid, to, from, bytes, worker);
    } else if (aligned_alike(to, from, 4)) {
        detail::copy_words<std::uint32_t>(grid, to, from, bytes, worker);
    } else {
        detail::copy_words<unsigned char>(grid, to, from, bytes, worker);
    }
}

template <class Grid>
constexpr void copy_body(Grid& grid, const CopyArgs& args) {
    const Gate& gate = args.gate;
    if (gate.grid == 0) {
        copy_span(grid, args.destination, args.source, args.bytes, worker_of_grid(grid));
        return;
    }
    const Opened opened = begin_grid(grid, gate.grid, [&] { return pass_gate(grid, gate.status); });
    if (opened.works) {
        copy_span(grid, args.destination, args.source, args.bytes, opened.worker);
    }
    end_grid(grid, gate, [] {});
}

}  // namespace kernels::cuda

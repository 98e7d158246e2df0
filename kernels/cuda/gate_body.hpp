// How a grid begins and ends, so that the host knows when its kernels touch memory of a group.
//
// The host that gives the memory back first stores `closed`, then reads `busy`. A kernel first
// stores `busy`, then reads `closed`. With a fence between on both sides, at least one of them
// reads what the other one has stored: either the kernel does nothing, or the host waits for it.
// That holds for kernels of graphs, of which the host does not know when they are launched, also
// after the memory is gone: all that they touch then are GridWords and StatusWords, which stay.
//
// A grid begins with its first block, whichever that is, whose first thread decides for all, and
// ends with its last one. No block waits for one that has not started, but for the first.

#pragma once

#include "kernels/cuda/span_body.hpp"

namespace kernels::cuda {

// Member addresses: the words are reached by address, never through a pointer to the struct.
#define FABRIC_MEMBER(base, type, member) ((base) + offsetof(type, member))

/// What a block does once its grid has begun.
struct Opened {
    bool works;           // false: there is nothing to do
    Worker worker;        // of all of the grid
    std::uint64_t block;  // this one's number: the order in which they started
};

/// By one thread of a grid, before all other accesses: whether it may touch memory of the group.
template <class Grid>
constexpr bool pass_gate(Grid& grid, Address status) {
    grid.store_release(FABRIC_MEMBER(status, StatusWords, busy), 1);
    grid.fence();
    return grid.load_acquire(FABRIC_MEMBER(status, StatusWords, closed)) == 0;
}

/// Called by all threads of all blocks, first. decide(), by one thread: whether there is work.
template <class Grid, class Decide>
constexpr Opened begin_grid(Grid& grid, Address words, Decide decide) {
    if (grid.thread() == 0) {
        const std::uint32_t ticket = grid.fetch_add32(FABRIC_MEMBER(words, GridWords, tickets), 1);
        const Address go = FABRIC_MEMBER(words, GridWords, go);
        // Release, and the others acquire: they see what was decided, and, since order passes on,
        // what the peers wrote before they arrived.
        if (ticket == 0) grid.store_release32(go, decide() ? 1 : 2);
        std::uint32_t seen = grid.load_acquire32(go);
        for (unsigned turn = 0; seen == 0; ++turn) {
            // The first block runs, and its waits end by the deadline.
            grid.pause(turn);
            seen = grid.load_acquire32(go);
        }
        grid.shared(0) = ticket;
        grid.shared(1) = seen;
    }
    grid.sync_block();
    return {grid.shared(1) == 1,
            {grid.shared(0) * grid.threads() + grid.thread(),
             std::uint64_t{grid.blocks()} * grid.threads()},
            grid.shared(0)};
}

/// Called by all threads of all blocks, last. finish(), by one thread when all others are done.
template <class Grid, class Finish>
constexpr void end_grid(Grid& grid, const Gate& gate, Finish finish) {
    // Orders the accesses of all threads of the block before what its first thread does next.
    grid.sync_block();
    if (grid.thread() != 0) return;
    const Address words = gate.grid;
    // Acquire and release: the last block has seen all others' accesses.
    const std::uint32_t before = grid.fetch_add32(FABRIC_MEMBER(words, GridWords, finished), 1);
    if (before + 1 != grid.blocks()) return;
    finish();
    grid.store(FABRIC_MEMBER(words, GridWords, tickets), std::uint32_t{0});
    grid.store(FABRIC_MEMBER(words, GridWords, finished), std::uint32_t{0});
    grid.store(FABRIC_MEMBER(words, GridWords, lead), std::uint32_t{0});
    grid.store(FABRIC_MEMBER(words, GridWords, go), std::uint32_t{0});
    const Address ended = FABRIC_MEMBER(gate.status, StatusWords, ended);
    if (gate.counts != 0) grid.store_release(ended, grid.load_acquire(ended) + 1);
    // Release: the last access of this kernel to memory of the group comes before.
    grid.store_release(FABRIC_MEMBER(gate.status, StatusWords, busy), 0);
}

}  // namespace kernels::cuda

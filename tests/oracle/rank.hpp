// One rank of a program: its memory, its groups, and the script that it plays.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/oracle/player.hpp"
#include "tests/oracle/program.hpp"

namespace oracle {

/// Memory that all processes of a program share outside the library: where each one is, and what
/// went wrong first.
struct Board {
    struct Line {
        std::atomic<std::int64_t> position;  // in the script; -1: not begun
        std::atomic<std::uint64_t> moves;    // rises whenever something was done
    };
    Line lines[FABRICSHM_WORLD_MAX];
    std::atomic<std::uint64_t>
        common_offset;                  // in the arena, where all see the common slab; 0: not yet
    std::atomic<std::uint32_t> ready;   // ranks that have their memory
    std::atomic<std::uint32_t> failed;  // 1: `text` is being written, 2: it is there
    char text[1024];
};

/// The processes' main function: 0, or 1 after writing on the board what went wrong.
int play_rank(const Program& program, int rank, const PlayOptions& options, std::uint64_t run,
              Board& board);

}  // namespace oracle

// A small job that passes every fault point of the library and makes the daemon pass its own: three
// ranks with regions, tensors, messages and collectives of every engine, which go on when one of
// them or the daemon dies. Each checks what it reads, and that every call kept its deadline.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace test_support {

inline constexpr int kJobRanks = 3;

/// Steps at which all living ranks stand still until the test lets them go on.
enum JobStage : int {
    kStageReady = 1,     // attached, data published; no group yet
    kStageMiddle = 2,    // collectives done: the test restarts the daemon
    kStageMourning = 3,  // the test may kill the last rank
    kStageEnd = 4,       // all that is held is about to be given back
};

/// What a rank has been granted.
struct JobClaim {
    std::uint64_t id;
    std::uint64_t generation;
    std::uint64_t offset;
    std::uint64_t bytes;
};

inline constexpr std::size_t kJobClaims = 4;
inline constexpr std::size_t kJobRounds = 16;

/// In memory that the test shares with its ranks.
struct JobBoard {
    struct Rank {
        std::atomic<int> stage{0};
        std::atomic<int> claims{0};
        std::array<JobClaim, kJobClaims> claim;
        std::array<std::atomic<int>, kJobRounds> round{};  // 0: not yet, 1: well, 2: it failed
    };
    std::atomic<int> opened{0};  // stages up to here may be left
    std::atomic<bool> dead[kJobRanks]{};
    std::array<Rank, kJobRanks> ranks;
};

/// What rank `rank` does, in a process of its own; `socket` is the daemon's. 0 when all was as it
/// has to be; otherwise what was not has been said on stderr.
int play_job(JobBoard& board, const std::string& socket, int rank);

/// Descriptors that this process has open.
int open_descriptors();

}  // namespace test_support

// Plays a program on real ranks: one process each, against a real daemon, with every byte compared
// with the model.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/oracle/program.hpp"

namespace oracle {

struct PlayOptions {
    std::string socket;        // of the daemon
    std::string folder;        // for the file of the tuning table
    std::string hosts;         // "", or how each rank's host behaves: eager, random, strict
    int timeout_seconds = 30;  // of each call; a rank that makes no progress for longer hangs
};

/// What went wrong, for people. Ranks without progress are named with what they were doing.
struct Failure {
    std::string text;
};

/// The arena of all programs, which the caller keeps open.
constexpr const char* kArenaName = "oracle";

/// Runs all ranks of the program to their ends and returns the first thing that is not as the model
/// says. `run` distinguishes the groups of different calls.
std::optional<Failure> play(const Program& program, const PlayOptions& options, std::uint64_t run);

}  // namespace oracle

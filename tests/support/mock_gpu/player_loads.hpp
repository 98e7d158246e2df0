// Commands of the player that call the driver very often: at random, in turn, or for some time.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace gpu_player {

/// A command and what follows it.
using Words = std::vector<std::string>;

/// 0 where there is none.
inline std::uint64_t number(const Words& words, std::size_t at) {
    return at < words.size() ? std::strtoull(words[at].c_str(), nullptr, 10) : 0;
}

/// Two threads retain and release the primary context at random, words[1] times each; answers how
/// often less than words[2] bytes were charged while it was retained.
std::string race_primary(const Words& words);

/// Allocates and frees at random; answers how often it was refused, and how often with a wrong
/// error. Seed, how often, and the most bytes of a piece.
std::string race(const Words& words);

/// Times words[2] calls of words[1]: nanoseconds at the median and at the 99th of 100.
std::string time_calls(const Words& words);

/// Launches for words[1] milliseconds, kernels of words[2] threads.
std::string launch_for(const Words& words);

}  // namespace gpu_player

// Random numbers of the simulator: own arithmetic instead of <random>'s distributions, which differ
// between libraries, so that the same seed gives the same run everywhere.

#pragma once

#include <random>

namespace emu {

/// At least 0 and less than 1, in steps of 2^-53.
inline double uniform(std::mt19937_64& random) {
    return static_cast<double>(random() >> 11) * 0x1p-53;
}

}  // namespace emu

// Litmus: two sides over one piece of memory try to catch a visibility profile at being wrong.

#pragma once

#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace emu {

using fabricshm::Bytes;

inline constexpr Bytes kLitmusBytes = 2 * 4096;  // of the memory under test

struct LitmusOptions {
    std::uint64_t rounds = 10000;
    fabricshm::Duration timeout = std::chrono::seconds(5);  // for one sign of the other side
};

/// What one side observed. One sighting refutes the profile; none after many rounds is the proof
/// that there can be.
struct LitmusSightings {
    std::uint64_t rounds = 0;    // passed, in both directions and both shapes together
    std::uint64_t stale = 0;     // message passing: the flag was there and its data was not
    std::uint64_t both_old = 0;  // store buffering: each side missed what the other had published
    bool silent = false;         // what the other side published never came

    bool refutes() const noexcept { return stale != 0 || both_old != 0 || silent || rounds == 0; }
};

/// Plays side 0 or 1; the other is another thread, process or host, started within the timeout.
/// `base` has kLitmusBytes, zeros at first or left by an earlier run. Message passing goes from 0
/// to 1 and back, over data of one line and of many.
LitmusSightings run_litmus(int side, std::byte* base, const fabricshm::Visibility& view,
                           const LitmusOptions& options);

}  // namespace emu

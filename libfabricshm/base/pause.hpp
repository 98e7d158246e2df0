// One turn of a loop that waits for another processor's store.

#pragma once

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// Between two polls of a word that no process can wake the reader for. Long enough to leave the
/// core to the rank that is waited for, short next to the operations that make a rank wait this
/// long.
inline constexpr Duration kNap = std::chrono::microseconds(50);

/// Lets the other thread of a shared core go first and leaves the loop without the penalty that a
/// changed line costs otherwise. Some 40 ns on x86, nothing elsewhere.
inline void pause_cpu() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

}  // namespace fabricshm

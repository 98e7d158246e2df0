// StorePolicy: whether what ranks store for each other goes through the cache or past it.
//
// Which is faster depends on where the ranks run: between cores that share a cache, a cached store
// hands the line over; between cores that do not, every line is fetched back from a foreign cache,
// one at a time, and memory is two to three times faster. A virtual machine is moved from the one
// to the other while it runs, so this is measured as operations go by, not once.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/call.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace fabricshm {

/// Where an operation stores. Each has costs of its own, so each is measured for itself.
enum class StorePlace { kSlots, kOutputs, kSharedOutput };

/// Rank 0's measurements and choices, by kind of operation, place and size. The other ranks follow
/// the bits that it shows them; the result of an operation does not depend on them, so a rank that
/// reads one late only stores the slower way once. Used by one thread at a time.
class StorePolicy {
  public:
    /// Operations of fewer bytes, of all ranks together, have no cell.
    static constexpr Bytes kMinBytes = 8 * kKiB;

    /// A cell of the table: operations that are measured together. -1: too small to care.
    static int cell_of(StorePlace place, Kind kind, Bytes bytes) noexcept;

    static StorePlace place_of(int cell) noexcept;
    /// Bytes at the lower end of a cell's sizes.
    static Bytes least_bytes(int cell) noexcept;

    StorePolicy();

    /// Whether operations of this cell store past the cache now.
    bool past_cache(int cell) const noexcept;

    /// The choice to begin with. `crowded`: the ranks take turns on their processors, so that the
    /// time of an operation says less, and more is wanted of it before the choice changes.
    void begin_with(int cell, bool past_cache, bool crowded) noexcept;

    /// Reports how long an operation took. Now and then the other way is tried for a few
    /// operations, and at once when the chosen one takes another time than when they were compared
    /// last: then the ranks have moved. Returns true when past_cache(cell) has changed. O(1).
    bool ran(int cell, Duration took) noexcept;

  private:
    struct Cell {
        Duration best = Duration::max();    // of the window so far
        Duration usual = Duration::max();   // the best of the last whole window
        Duration tried = Duration::max();   // the best of the trial
        Duration judged = Duration::max();  // of the way that won the last trial
        std::uint16_t until_trial;          // operations, whole windows
        std::uint16_t interval;
        std::uint8_t window_left;
        std::uint8_t moved_windows = 0;  // in a row, in which the chosen way took another time
        std::uint8_t trials_left = 0;
        bool choice = false;
        bool first = false;  // what it began with
        bool crowded = false;
    };

    bool end_window(Cell& cell) noexcept;
    bool end_trial(Cell& cell) noexcept;

    std::vector<Cell> cells_;
};

/// The bits of all cells, in the group block: rank 0 writes them, the others read them.
inline constexpr int kStoreKinds = 9;
inline constexpr int kStoreClasses = 24;
inline constexpr int kStoreCells = 3 * kStoreKinds * kStoreClasses;
static_assert(kStoreCells <= 64 * kStoreWords);

/// Relaxed both, and never published: nothing hangs on when, or whether, a rank sees a new choice.
bool shown_past_cache(const GroupHeader& header, int cell) noexcept;
void show_past_cache(GroupHeader& header, int cell, bool past_cache) noexcept;

}  // namespace fabricshm

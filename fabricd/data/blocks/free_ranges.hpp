// FreeRanges: which parts of a range of numbers are free: bytes of the memory, lines of the table.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace fabricd {

/// One thread at a time; O(log holes). Neighbouring holes are one.
class FreeRanges {
  public:
    enum class End { kLow, kHigh };

    /// All of [begin, end) is free.
    FreeRanges(std::uint64_t begin, std::uint64_t end);

    /// Takes `count` numbers from a multiple of `align` on, out of the smallest hole that has room;
    /// of several such the lowest or the highest. Nothing: no hole has room.
    std::optional<std::uint64_t> take(std::uint64_t count, std::uint64_t align, End end);

    /// Takes these, when all of them are free.
    bool take_at(std::uint64_t begin, std::uint64_t count);

    /// They are free again.
    void give(std::uint64_t begin, std::uint64_t count);

    std::uint64_t free() const noexcept { return free_; }
    /// How many of [begin, end) are free. O(holes in it).
    std::uint64_t free_in(std::uint64_t begin, std::uint64_t end) const;
    /// What of [begin, end) is free: begins and counts.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> holes_in(std::uint64_t begin,
                                                                  std::uint64_t end) const;
    std::uint64_t largest() const noexcept {
        return by_size_.empty() ? 0 : by_size_.rbegin()->first;
    }

  private:
    void add(std::uint64_t begin, std::uint64_t count);
    void remove(std::map<std::uint64_t, std::uint64_t>::iterator hole);

    std::map<std::uint64_t, std::uint64_t> holes_;               // begin -> count
    std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // count, begin
    std::uint64_t free_ = 0;
};

}  // namespace fabricd

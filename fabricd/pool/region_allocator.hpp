// RegionAllocator: which bytes of an arena are taken.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;

/// Hands out pieces of [0, bytes), in whole units of 4096. Best fit, because arenas hold a few
/// large buffers that come and go next to many small ones: the large holes are kept for the large
/// pieces. Its own state lives in the daemon, never in the arena. O(log holes) each. Not
/// thread-safe.
class RegionAllocator {
  public:
    static constexpr Bytes kUnit = fabricshm::kPageBytes;

    /// `bytes` is rounded down to whole units.
    explicit RegionAllocator(Bytes bytes);

    /// The offset of a piece of at least `bytes` (rounded up to units), or nothing when no hole is
    /// large enough. 0 bytes take one unit.
    std::optional<std::uint64_t> allocate(Bytes bytes);

    /// Takes exactly [offset, offset + bytes): for pieces known from the journal. False, and
    /// nothing changes, unless all of it is free and on units.
    bool reserve(std::uint64_t offset, Bytes bytes);

    /// Takes whatever is free in [offset, offset + bytes): memory that must not be granted.
    void reserve_free(std::uint64_t offset, Bytes bytes);

    /// Gives a piece back, merging it with the holes around it. False, and nothing changes, when
    /// any of it is already free or outside.
    bool release(std::uint64_t offset, Bytes bytes);

    /// [bytes_total(), bytes), rounded down to units, is free from now on.
    void extend(Bytes bytes);

    /// [bytes, bytes_total()) is no more. All of it is free.
    void truncate(Bytes bytes);

    Bytes bytes_total() const noexcept { return total_; }
    /// Of them, how many at the end are free.
    Bytes bytes_free_at_end() const noexcept;
    Bytes bytes_free() const noexcept { return free_; }
    Bytes bytes_used() const noexcept { return total_ - free_; }
    Bytes largest_hole() const noexcept;
    std::size_t hole_count() const noexcept { return holes_.size(); }

    /// How many bytes a piece of `bytes` really takes; 0 when that is more than an arena can have.
    static Bytes rounded(Bytes bytes) noexcept;

  private:
    using Holes = std::map<std::uint64_t, Bytes>;  // offset -> bytes; never touching one another

    void add_hole(std::uint64_t offset, Bytes bytes);
    void remove_hole(Holes::iterator hole);
    void cut(Holes::iterator hole, std::uint64_t offset, Bytes bytes);
    bool inside(std::uint64_t offset, Bytes bytes) const noexcept;

    Holes holes_;
    std::set<std::pair<Bytes, std::uint64_t>> by_size_;  // the same holes, smallest first
    Bytes total_;
    Bytes free_;
};

}  // namespace fabricd

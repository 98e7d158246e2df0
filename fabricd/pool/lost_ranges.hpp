// LostRanges: the bytes of an arena that the hardware lost. They are never granted again.

#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;

/// Ranges that neither overlap nor touch. Not thread-safe.
class LostRanges {
  public:
    using Range = std::pair<std::uint64_t, Bytes>;  // offset, bytes

    /// Adds a range, merging it with those around it.
    void add(std::uint64_t offset, Bytes bytes);

    /// Whether any byte, or every byte, of [offset, offset + bytes) is lost.
    bool touches(std::uint64_t offset, Bytes bytes) const;
    bool covers(std::uint64_t offset, Bytes bytes) const { return intact(offset, bytes).empty(); }

    /// The parts of [offset, offset + bytes) that are not lost, in order.
    std::vector<Range> intact(std::uint64_t offset, Bytes bytes) const;

    /// The parts of all of them that lie in none of `pieces`.
    std::vector<Range> outside(const std::vector<Range>& pieces) const;

    const std::map<std::uint64_t, Bytes>& all() const noexcept { return ranges_; }

  private:
    std::map<std::uint64_t, Bytes> ranges_;
};

}  // namespace fabricd

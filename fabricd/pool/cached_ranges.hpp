// CachedRanges: what of an arena may lie in the caches of the owner's host, where other hosts share
// the pool and their caches are not coherent with it. docs/hosts.md, "One pool, several hosts".

#pragma once

#include <cstdint>
#include <map>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;

/// Ranges that neither overlap nor touch. Not thread-safe.
class CachedRanges {
  public:
    /// Processes of this host may store there, or may have.
    void add(std::uint64_t offset, Bytes bytes);

    /// Whether any byte of [offset, offset + bytes) is in; none is afterwards: the caller writes it
    /// out.
    bool take(std::uint64_t offset, Bytes bytes);

    bool touches(std::uint64_t offset, Bytes bytes) const;

  private:
    std::map<std::uint64_t, std::uint64_t> ranges_;  // begin -> end
};

}  // namespace fabricd

// What of a set is kept while plans say how it is read: as much as fits, and that to the end. Where
// each sample is read once in an epoch, no order of eviction has more hits than keeping a fixed
// part (CoorDL's MinIO cache; Mohan, Phanishayee, Raniwala, Chidambaram, 2021): what is evicted is
// read again as likely, and later, than what is kept.

#pragma once

#include <cstdint>
#include <unordered_map>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;

/// One set's budget. One thread at a time, O(1).
class KeptSamples {
  public:
    explicit KeptSamples(Bytes budget) : budget_(budget) {}

    bool has(std::uint32_t sample) const { return kept_.count(sample) != 0; }
    Bytes used() const noexcept { return used_; }
    Bytes budget() const noexcept { return budget_; }

    /// True: the sample that was fetched stays. False: it goes when its read ends.
    bool keep(std::uint32_t sample, Bytes bytes);

    /// Its file has another version, or its memory was lost.
    void drop(std::uint32_t sample);

    /// The room is larger or smaller from now on; gives one sample that has to go, if any: call
    /// until there is none.
    void resize(Bytes budget) noexcept { budget_ = budget; }
    bool next_to_go(std::uint32_t& sample) const;

  private:
    std::unordered_map<std::uint32_t, Bytes> kept_;
    Bytes budget_;
    Bytes used_ = 0;
};

}  // namespace fabricd

// What of a set is kept while plans say how it is read: as much as fits, and that to the end. Where
// each sample is read once in an epoch, no order of eviction has more hits than keeping a fixed
// part (CoorDL's MinIO cache; Mohan, Phanishayee, Raniwala, Chidambaram, 2021): what is evicted is
// read again as likely, and later, than what is kept.
//
// Which part that is does not matter. A sample that the epoch has read is worth no more than any
// other of the set, so it may go for one that is fetched ahead, which is kept in its place: the
// samples of an epoch that were read are the room that fetching ahead needs, and no other is lost.

#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;

/// One set's budget. One thread at a time, O(log samples) a call.
class KeptSamples {
  public:
    explicit KeptSamples(Bytes budget) : budget_(budget) {}

    bool has(std::uint32_t sample) const { return kept_.count(sample) != 0; }
    Bytes used() const noexcept { return used_; }
    Bytes budget() const noexcept { return budget_; }

    /// True: the sample that was fetched stays. False: it goes when its read ends.
    bool keep(std::uint32_t sample, Bytes bytes);

    /// No epoch that is announced reads it (again): it may go for others. Nothing of one that is
    /// not kept.
    void set_spare(std::uint32_t sample);
    /// One reads it.
    void set_needed(std::uint32_t sample);
    Bytes spare() const noexcept { return spare_bytes_; }

    /// As keep(), in the place of spare samples, which are added to `gone` and kept no more: first
    /// those that came by an exchange themselves, so that an epoch changes no more of the part than
    /// is fetched ahead at a time. False: nothing has changed.
    bool exchange(std::uint32_t sample, Bytes bytes, std::vector<std::uint32_t>& gone);

    /// Its file has another version, or its memory was lost.
    void drop(std::uint32_t sample);

    /// The room is larger or smaller from now on; gives one sample that has to go, if any, a spare
    /// one before others: call until there is none.
    void resize(Bytes budget) noexcept { budget_ = budget; }
    bool next_to_go(std::uint32_t& sample) const;

  private:
    using Order = std::pair<bool, std::uint64_t>;  // was kept before the epoch; when it was read
    struct Sample {
        Bytes bytes = 0;
        bool is_exchanged = false;  // for another one, in this epoch
        bool is_spare = false;
        Order order{};  // while it is spare
    };
    void enter(std::uint32_t sample, Bytes bytes, bool is_exchanged);
    void unspare(Sample& sample);

    std::unordered_map<std::uint32_t, Sample> kept_;
    std::map<Order, std::uint32_t> spare_;  // the next to go first
    std::uint64_t last_read_ = 0;
    Bytes budget_;
    Bytes used_ = 0;
    Bytes spare_bytes_ = 0;
};

}  // namespace fabricd

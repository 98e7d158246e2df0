// MemoryShare: how much of its arena the cache uses, as the daemon asks: it gives memory back when
// jobs need it, and uses it again when it gets it. docs/data.md, elastic_words.hpp.

#pragma once

#include <functional>
#include <optional>

#include "fabricd/data/blocks/cache_end.hpp"
#include "fabricd/data/serve/reader_notes.hpp"
#include "libfabricshm/shm/elastic_words.hpp"

namespace fabricd {

using fabricshm::Duration;
using fabricshm::TimePoint;

/// The maker's side of an elastic arena; the defaults are those of an arena that stays whole.
class ElasticMemory {
  public:
    ElasticMemory() = default;
    virtual ~ElasticMemory() = default;
    ElasticMemory(const ElasticMemory&) = delete;
    ElasticMemory& operator=(const ElasticMemory&) = delete;

    /// As PublishedArena says.
    virtual std::optional<fabricshm::ElasticTarget> target() { return std::nullopt; }
    virtual void keep(const fabricshm::ElasticTarget& target, Bytes bytes) {
        static_cast<void>(target), static_cast<void>(bytes);
    }
    virtual void report(const fabricshm::ElasticUse& use) { static_cast<void>(use); }
};

/// The control thread's.
class MemoryShare {
  public:
    /// Never less than `floor` is used. `resized` is called when the cache has more or less.
    MemoryShare(ChunkCache& cache, ElasticMemory& memory, Bytes floor,
                std::function<void()> resized)
        : cache_(cache), memory_(memory), floor_(floor), resized_(std::move(resized)) {}

    /// Answers what the daemon asks, or a part of it: where readers have the rest pinned it goes on
    /// with the next call. Some 20 ms at most. `waiting`: of the readers that wait now, which note
    /// it when the wait has ended.
    void tick(const ReaderNotes& notes, Duration waiting, TimePoint now);
    /// It goes on.
    bool is_shrinking() const noexcept { return is_shrinking_; }

  private:
    void answer(const fabricshm::ElasticTarget& target);

    ChunkCache& cache_;
    ElasticMemory& memory_;
    const Bytes floor_;
    const std::function<void()> resized_;
    bool is_shrinking_ = false;
    std::uint64_t stall_ns_ = 0;  // that was reported
    TimePoint next_report_{};
    TimePoint next_try_{};
};

}  // namespace fabricd

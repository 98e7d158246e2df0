// SlotMap: which chunk lies in which slot of the spill, and which slot goes when another is needed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "fabricd/data/blocks/s3_fifo.hpp"
#include "fabricd/data/spill/slot_index.hpp"

namespace fabricd {

/// A chunk as the spill knows it.
struct ChunkKey {
    std::uint64_t file = 0;  // CataloguedFile::id
    std::uint32_t number = 0;

    bool operator==(const ChunkKey&) const = default;
};

struct ChunkPlace {
    std::uint32_t slot = 0;
    std::uint32_t offset = 0;
    std::uint32_t bytes = 0;
    std::uint32_t checksum = 0;
};

/// The rules alone: no bytes, no files. One thread at a time; O(1) but for what goes.
///
/// Slots are written from front to back and never twice; they go as a whole. Slots of kept chunks
/// stay while there are others, and are never given up for each other: of samples that are read
/// once in an epoch none is worth more than another (docs/data.md). The rest is S3-FIFO.
class SlotMap {
  public:
    explicit SlotMap(std::uint32_t slots);

    std::optional<ChunkPlace> find(const ChunkKey& key) const;
    /// find() for a read: the slot stays as it is until unpin(). Counts as a use.
    std::optional<ChunkPlace> pin(const ChunkKey& key);
    void unpin(std::uint32_t slot);

    /// A slot to be written; for it another may go, whose chunks are added to `gone`. None: all
    /// others may not go.
    std::optional<std::uint32_t> take_slot(bool kept, std::vector<ChunkKey>& gone);
    /// Of a slot that was taken: a chunk that is nowhere yet.
    void add(std::uint32_t slot, const SlotEntry& entry);
    /// It is full: it may go from now on.
    void seal(std::uint32_t slot);
    /// As it was before a restart: taken, filled and sealed; chunks that are there already are left
    /// out. False: the slot is not free, or no chunk is left.
    bool restore(std::uint32_t slot, const std::vector<SlotEntry>& entries);

    /// It is another version by now, or its bytes are wrong. A sealed slot without chunks is free
    /// again. False: it was not there.
    bool drop(const ChunkKey& key);

    /// The plan is over: nothing is kept any more.
    void release_kept();

    std::uint32_t slots() const noexcept { return static_cast<std::uint32_t>(slots_.size()); }
    std::uint32_t free_slots() const noexcept { return free_count_; }
    std::size_t kept_slots() const noexcept { return kept_.size(); }
    std::size_t chunks() const noexcept { return places_.size(); }
    Bytes bytes() const noexcept { return bytes_; }

  private:
    enum class State : std::uint8_t { kFree, kOpen, kSealed };
    struct Slot {
        std::vector<ChunkKey> chunks;  // also such as were dropped
        std::uint64_t turn = 0;        // its name in fifo_: another each time that it is taken
        std::uint32_t live = 0;        // of `chunks`, those that are still there
        std::uint32_t pins = 0;
        State state = State::kFree;
        bool kept = false;
        std::list<std::uint32_t>::iterator place{};  // in kept_
    };
    struct KeyHash {
        std::size_t operator()(const ChunkKey& key) const noexcept {
            return (key.file * 0x9e3779b97f4a7c15U) ^ (key.number * 0xc2b2ae3d27d4eb4fU);
        }
    };

    bool evict_one(std::vector<ChunkKey>& gone);
    void empty(std::uint32_t index, std::vector<ChunkKey>& gone);
    void free_if_empty(std::uint32_t index);
    void make_free(std::uint32_t index);
    void enter_fifo(std::uint32_t index);
    void leave_queues(std::uint32_t index);

    std::vector<Slot> slots_;
    std::vector<std::uint32_t> free_;  // also some that are not, or that are there twice
    std::uint32_t free_count_;
    std::list<std::uint32_t> kept_;  // sealed, or being written
    S3Fifo fifo_{0};                 // sealed, not kept; each counts 1 byte
    std::unordered_map<std::uint64_t, std::uint32_t> by_turn_;  // of fifo_
    std::unordered_map<ChunkKey, ChunkPlace, KeyHash> places_;
    std::uint64_t last_turn_ = 0;
    Bytes bytes_ = 0;
};

}  // namespace fabricd

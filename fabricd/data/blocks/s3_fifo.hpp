// S3-FIFO: which blocks of a cache go when others come, for reads that no plan has announced. Three
// queues, first in, first out: what comes for the first time is on trial in a small one, what was
// read again meanwhile goes on to the main one, and names that failed the trial are remembered for
// a while (Yang, Zhang, Qiu, Yue, Vinayak: FIFO queues are all you need for cache eviction, 2023).

#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;

/// The policy alone: it holds names and sizes, no bytes. One thread at a time; each call is O(1)
/// but for the blocks that it evicts or passes over.
class S3Fifo {
  public:
    using BlockId = std::uint64_t;
    /// Whether a block may go now: not one that a reader has pinned.
    using MayGo = std::function<bool(BlockId)>;

    explicit S3Fifo(Bytes capacity) : capacity_(capacity) {}

    bool has(BlockId block) const { return places_.count(block) != 0; }
    Bytes used() const noexcept { return small_.bytes + main_.bytes; }
    Bytes capacity() const noexcept { return capacity_; }

    /// It was read again; what is not there is no concern.
    void touch(BlockId block);

    /// Takes a block in that is not there. What goes for it is added to `evicted`. False: no room
    /// can be made, since the others may not go or it is larger than all; nothing has changed then
    /// but for what went.
    bool add(BlockId block, Bytes bytes, const MayGo& may_go, std::vector<BlockId>& evicted);

    /// It is gone for another reason. The name is not remembered.
    void remove(BlockId block);

    /// The room is larger or smaller from now on. False: more is held than fits and may not go.
    bool resize(Bytes capacity, const MayGo& may_go, std::vector<BlockId>& evicted);

  private:
    struct Block {
        BlockId id;
        Bytes bytes;
        std::uint8_t reads;  // since it came to the queue's end, kReadsMax at most
    };
    struct Queue {
        std::list<Block> blocks;  // the oldest first
        Bytes bytes = 0;
    };
    struct Place {
        Queue* queue;
        std::list<Block>::iterator block;
    };

    bool make_room(Bytes bytes, const MayGo& may_go, std::vector<BlockId>& evicted);
    bool evict_from_small(const MayGo& may_go, std::vector<BlockId>& evicted);
    bool evict_from_main(const MayGo& may_go, std::vector<BlockId>& evicted);
    void append(Queue& queue, const Block& block);
    Block take_first(Queue& queue);
    void remember(BlockId block, Bytes bytes);

    Bytes capacity_;
    Queue small_;
    Queue main_;
    std::unordered_map<BlockId, Place> places_;
    // Names without blocks, as many bytes of them as fit.
    std::list<std::pair<BlockId, Bytes>> ghosts_;
    std::unordered_map<BlockId, std::list<std::pair<BlockId, Bytes>>::iterator> ghost_places_;
    Bytes ghost_bytes_ = 0;
};

}  // namespace fabricd

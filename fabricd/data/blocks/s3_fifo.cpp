#include "fabricd/data/blocks/s3_fifo.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

constexpr std::uint8_t kReadsMax = 3;
// Of the capacity, for what is on trial.
constexpr Bytes kSmallPart = 10;

}  // namespace

void S3Fifo::append(Queue& queue, const Block& block) {
    queue.bytes += block.bytes;
    queue.blocks.push_back(block);
    places_[block.id] = {&queue, std::prev(queue.blocks.end())};
}

S3Fifo::Block S3Fifo::take_first(Queue& queue) {
    const Block block = queue.blocks.front();
    queue.blocks.pop_front();
    queue.bytes -= block.bytes;
    places_.erase(block.id);
    return block;
}

void S3Fifo::touch(BlockId block) {
    const auto place = places_.find(block);
    if (place == places_.end()) return;
    std::uint8_t& reads = place->second.block->reads;
    reads = std::min<std::uint8_t>(reads + 1, kReadsMax);
}

void S3Fifo::remember(BlockId block, Bytes bytes) {
    ghosts_.emplace_back(block, bytes);
    ghost_places_[block] = std::prev(ghosts_.end());
    ghost_bytes_ += bytes;
    while (ghost_bytes_ > capacity_) {
        ghost_bytes_ -= ghosts_.front().second;
        ghost_places_.erase(ghosts_.front().first);
        ghosts_.pop_front();
    }
}

// One block goes, or moves on; false when none of them may. Those that may not come to the end.
bool S3Fifo::evict_from_small(const MayGo& may_go, std::vector<BlockId>& evicted) {
    for (std::size_t tries = small_.blocks.size(); tries > 0; --tries) {
        Block block = take_first(small_);
        if (block.reads > 1) {
            block.reads = 0;
            append(main_, block);
            return true;
        }
        if (may_go(block.id)) {
            remember(block.id, block.bytes);
            evicted.push_back(block.id);
            return true;
        }
        append(small_, block);
    }
    return false;
}

bool S3Fifo::evict_from_main(const MayGo& may_go, std::vector<BlockId>& evicted) {
    // Each may come by as often as it was read, and once more.
    for (std::size_t tries = main_.blocks.size() * (kReadsMax + 1U); tries > 0; --tries) {
        Block block = take_first(main_);
        if (block.reads == 0 && may_go(block.id)) {
            evicted.push_back(block.id);
            return true;
        }
        if (block.reads > 0) --block.reads;
        append(main_, block);
    }
    return false;
}

bool S3Fifo::make_room(Bytes bytes, const MayGo& may_go, std::vector<BlockId>& evicted) {
    if (bytes > capacity_) return false;
    while (used() + bytes > capacity_) {
        const bool is_small_full = small_.bytes >= capacity_ / kSmallPart;
        const bool small_first = is_small_full || main_.blocks.empty();
        const bool done =
            small_first ? evict_from_small(may_go, evicted) || evict_from_main(may_go, evicted)
                        : evict_from_main(may_go, evicted) || evict_from_small(may_go, evicted);
        if (!done) return false;
    }
    return true;
}

bool S3Fifo::add(BlockId block, Bytes bytes, const MayGo& may_go, std::vector<BlockId>& evicted) {
    FABRIC_CHECK(!has(block));
    if (!make_room(bytes, may_go, evicted)) return false;
    const auto ghost = ghost_places_.find(block);
    const bool was_here = ghost != ghost_places_.end();
    if (was_here) {
        ghost_bytes_ -= ghost->second->second;
        ghosts_.erase(ghost->second);
        ghost_places_.erase(ghost);
    }
    append(was_here ? main_ : small_, {block, bytes, 0});
    return true;
}

void S3Fifo::remove(BlockId block) {
    const auto place = places_.find(block);
    if (place == places_.end()) return;
    Queue& queue = *place->second.queue;
    queue.bytes -= place->second.block->bytes;
    queue.blocks.erase(place->second.block);
    places_.erase(place);
}

bool S3Fifo::resize(Bytes capacity, const MayGo& may_go, std::vector<BlockId>& evicted) {
    capacity_ = capacity;
    return make_room(0, may_go, evicted);
}

}  // namespace fabricd

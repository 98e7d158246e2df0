#include "fabricd/data/spill/slot_map.hpp"

#include "libfabricshm/base/check.hpp"

namespace fabricd {

SlotMap::SlotMap(std::uint32_t slots) : slots_(slots), free_count_(slots) {
    free_.reserve(slots);
    // From the back: the first slots are used first.
    for (std::uint32_t slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
}

std::optional<ChunkPlace> SlotMap::find(const ChunkKey& key) const {
    const auto place = places_.find(key);
    if (place == places_.end()) return {};
    return place->second;
}

std::optional<ChunkPlace> SlotMap::pin(const ChunkKey& key) {
    const auto place = find(key);
    if (!place) return {};
    Slot& slot = slots_[place->slot];
    ++slot.pins;
    if (slot.turn != 0) fifo_.touch(slot.turn);
    return place;
}

void SlotMap::unpin(std::uint32_t slot) {
    FABRIC_CHECK(slots_[slot].pins > 0);
    --slots_[slot].pins;
    free_if_empty(slot);
}

// In the FIFO each slot has a name that it had never before: names are remembered there.
void SlotMap::enter_fifo(std::uint32_t index) {
    Slot& slot = slots_[index];
    slot.turn = ++last_turn_;
    by_turn_[slot.turn] = index;
    std::vector<S3Fifo::BlockId> evicted;
    const auto all_stay = [](S3Fifo::BlockId) { return false; };
    FABRIC_CHECK(fifo_.resize(fifo_.used() + 1, all_stay, evicted));
    FABRIC_CHECK(fifo_.add(slot.turn, 1, all_stay, evicted) && evicted.empty());
}

void SlotMap::leave_queues(std::uint32_t index) {
    Slot& slot = slots_[index];
    if (slot.turn != 0) {
        fifo_.remove(slot.turn);
        by_turn_.erase(slot.turn);
        slot.turn = 0;
    }
    if (slot.kept) kept_.erase(slot.place);
    slot.kept = false;
}

// All that is left of its chunks is gone; the slot is nowhere.
void SlotMap::empty(std::uint32_t index, std::vector<ChunkKey>& gone) {
    Slot& slot = slots_[index];
    for (const ChunkKey& key : slot.chunks) {
        const auto place = places_.find(key);
        if (place == places_.end() || place->second.slot != index) continue;
        bytes_ -= place->second.bytes;
        places_.erase(place);
        gone.push_back(key);
    }
    leave_queues(index);
    slot.chunks = {};
    slot.live = 0;
    slot.state = State::kFree;
}

bool SlotMap::evict_one(std::vector<ChunkKey>& gone) {
    if (fifo_.used() == 0) return false;
    std::vector<S3Fifo::BlockId> evicted;
    const auto may_go = [&](S3Fifo::BlockId turn) { return slots_[by_turn_.at(turn)].pins == 0; };
    if (!fifo_.resize(fifo_.used() - 1, may_go, evicted)) return false;
    for (const S3Fifo::BlockId turn : evicted) {
        const std::uint32_t index = by_turn_.at(turn);
        empty(index, gone);
        make_free(index);
    }
    return true;
}

std::optional<std::uint32_t> SlotMap::take_slot(bool kept, std::vector<ChunkKey>& gone) {
    if (free_count_ == 0 && !evict_one(gone)) return {};
    while (slots_[free_.back()].state != State::kFree) free_.pop_back();
    const std::uint32_t index = free_.back();
    free_.pop_back();
    --free_count_;
    Slot& slot = slots_[index];
    FABRIC_CHECK(slot.pins == 0 && slot.chunks.empty());
    slot.state = State::kOpen;
    slot.kept = kept;
    if (kept) {
        kept_.push_back(index);
        slot.place = std::prev(kept_.end());
    }
    return index;
}

void SlotMap::add(std::uint32_t slot, const SlotEntry& entry) {
    FABRIC_CHECK(slots_[slot].state == State::kOpen);
    const ChunkKey key{entry.file, entry.number};
    const bool is_new =
        places_.try_emplace(key, ChunkPlace{slot, entry.offset, entry.bytes, entry.checksum})
            .second;
    FABRIC_CHECK(is_new);
    slots_[slot].chunks.push_back(key);
    ++slots_[slot].live;
    bytes_ += entry.bytes;
}

void SlotMap::seal(std::uint32_t index) {
    Slot& slot = slots_[index];
    FABRIC_CHECK(slot.state == State::kOpen);
    slot.state = State::kSealed;
    slot.chunks.shrink_to_fit();
    if (!slot.kept) enter_fifo(index);
    free_if_empty(index);
}

bool SlotMap::restore(std::uint32_t index, const std::vector<SlotEntry>& entries) {
    if (index >= slots_.size() || slots_[index].state != State::kFree) return false;
    Slot& slot = slots_[index];
    slot.state = State::kOpen;
    for (const SlotEntry& entry : entries) {
        if (places_.count({entry.file, entry.number}) == 0) add(index, entry);
    }
    if (slot.live == 0) {
        slot.state = State::kFree;
        return false;
    }
    // What free_ still says of it is passed over in take_slot().
    --free_count_;
    seal(index);
    return true;
}

void SlotMap::free_if_empty(std::uint32_t index) {
    Slot& slot = slots_[index];
    if (slot.state != State::kSealed || slot.live != 0 || slot.pins != 0) return;
    std::vector<ChunkKey> gone;
    empty(index, gone);
    FABRIC_CHECK(gone.empty());
    make_free(index);
}

void SlotMap::make_free(std::uint32_t index) {
    free_.push_back(index);
    ++free_count_;
}

bool SlotMap::drop(const ChunkKey& key) {
    const auto place = places_.find(key);
    if (place == places_.end()) return false;
    const std::uint32_t slot = place->second.slot;
    bytes_ -= place->second.bytes;
    places_.erase(place);
    --slots_[slot].live;
    free_if_empty(slot);
    return true;
}

void SlotMap::release_kept() {
    for (auto next = kept_.begin(); next != kept_.end();) {
        const std::uint32_t index = *next++;
        Slot& slot = slots_[index];
        kept_.erase(slot.place);
        slot.kept = false;
        if (slot.state == State::kSealed) enter_fifo(index);
    }
}

}  // namespace fabricd

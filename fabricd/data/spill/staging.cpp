#include "fabricd/data/spill/staging.hpp"

namespace fabricd {

StagedSlot::~StagedSlot() {
    room_.give_back(bytes_);
}

Result<std::unique_ptr<StagingRoom>> StagingRoom::make(std::size_t slots) {
    std::unique_ptr<StagingRoom> room(new StagingRoom);
    FABRIC_TRY(room->memory_, fabricshm::Mapping::own(slots * kSlotBytes));
    for (std::size_t slot = 0; slot < slots; ++slot) {
        room->idle_.push_back(room->memory_.data() + slot * kSlotBytes);
    }
    return room;
}

std::shared_ptr<StagedSlot> StagingRoom::take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return {};
    auto slot = std::make_shared<StagedSlot>(*this, idle_.back());
    idle_.pop_back();
    return slot;
}

void StagingRoom::give_back(std::byte* bytes) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(bytes);
}

}  // namespace fabricd

// Staging: memory in which slots of the spill are filled, and from which they are written.

#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "fabricd/data/spill/slot_index.hpp"
#include "libfabricshm/os/mapping.hpp"

namespace fabricd {

class StagingRoom;

/// The bytes of a slot, at a page's beginning. Its place is free again when it goes.
class StagedSlot {
  public:
    StagedSlot(StagingRoom& room, std::byte* bytes) : room_(room), bytes_(bytes) {}
    ~StagedSlot();
    StagedSlot(const StagedSlot&) = delete;
    StagedSlot& operator=(const StagedSlot&) = delete;

    std::byte* bytes() const noexcept { return bytes_; }

  private:
    StagingRoom& room_;
    std::byte* bytes_;
};

/// Any thread. Outlives what it gave.
class StagingRoom {
  public:
    /// kNoMemory.
    static Result<std::unique_ptr<StagingRoom>> make(std::size_t slots);

    /// Empty: all are in use.
    std::shared_ptr<StagedSlot> take();
    std::span<std::byte> memory() const noexcept { return {memory_.data(), memory_.size()}; }

  private:
    friend class StagedSlot;
    StagingRoom() = default;
    void give_back(std::byte* bytes);

    fabricshm::Mapping memory_;
    std::mutex mutex_;
    std::vector<std::byte*> idle_;
};

}  // namespace fabricd

// PackedBuffer: memory for packed matrices that is kept from call to call, in the arena if there is
// room, where peers read and store without a copy in between.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// Where memory of the arena comes from: as in GroupPlace. Outlived by what it gave.
struct ArenaMemory {
    std::function<std::byte*(Bytes)> allocate;  // nullptr when there is no room
    std::function<void(std::byte*)> release;
};

/// One thread at a time.
class PackedBuffer {
  public:
    explicit PackedBuffer(ArenaMemory arena) : arena_(std::move(arena)) {}
    ~PackedBuffer() { drop(); }
    PackedBuffer(const PackedBuffer&) = delete;
    PackedBuffer& operator=(const PackedBuffer&) = delete;

    /// Room for `bytes`; what was there is lost when it has to grow. False when neither the arena
    /// nor the process has the memory.
    bool reserve(Bytes bytes);
    std::byte* data() const noexcept { return data_; }
    bool in_arena() const noexcept { return data_ != nullptr && own_ == nullptr; }

    /// Whether peers may still store into it, after an operation that failed: then it is never
    /// given back, only used again.
    void set_exposed(bool exposed) noexcept { exposed_ = exposed; }

  private:
    void drop() noexcept;

    const ArenaMemory arena_;
    std::unique_ptr<std::byte[]> own_;  // of the process
    std::byte* data_ = nullptr;
    Bytes bytes_ = 0;
    bool exposed_ = false;
};

}  // namespace fabricshm

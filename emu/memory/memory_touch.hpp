// MemoryTouch: real accesses to real memory, to check the model with.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "emu/memory/model_check.hpp"

namespace emu {

/// Goes through `memory` again and again: bulk operations from where the last one ended, cache
/// lines at places that no prefetcher guesses. Used by one thread.
class MemoryTouch final : public PoolTouch {
  public:
    /// Borrows [memory, memory + bytes), at least 64 KiB; better a few times the last-level cache.
    MemoryTouch(std::byte* memory, Bytes bytes) noexcept : memory_(memory), bytes_(bytes) {}

    void read(Bytes bytes) noexcept override;
    void write(Bytes bytes) noexcept override;

    /// Each rank gets its part of [memory, memory + bytes).
    static TouchMaker maker(std::byte* memory, Bytes bytes);

  private:
    static constexpr Bytes kPiece = 16 * fabricshm::kKiB;  // of what is private: stays in L1

    std::byte* next(Bytes bytes) noexcept;
    std::byte* somewhere() noexcept;

    std::byte* memory_;
    Bytes bytes_;
    Bytes at_ = 0;
    std::uint64_t random_ = 0x9e3779b97f4a7c15;
    alignas(64) std::array<std::byte, kPiece> own_{};
};

}  // namespace emu

#include "emu/memory/memory_touch.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/copy.hpp"

namespace emu {

using fabricshm::kCacheLine;

// From the start again when the rest is too short: an operation is one piece of memory.
std::byte* MemoryTouch::next(Bytes bytes) noexcept {
    if (at_ + bytes > bytes_) at_ = 0;
    std::byte* place = memory_ + at_;
    at_ += bytes;
    return place;
}

std::byte* MemoryTouch::somewhere() noexcept {
    // Marsaglia's xorshift: any sequence without a pattern would do.
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    // A multiple of the line, so that one access never touches two.
    return memory_ + random_ % (bytes_ / kCacheLine) * kCacheLine;
}

void MemoryTouch::read(Bytes bytes) noexcept {
    if (bytes <= kCacheLine) {
        std::memcpy(own_.data(), somewhere(), bytes);
        // The line must have come before the clock is read again: nothing waits for its value.
#if defined(__x86_64__)
        __builtin_ia32_lfence();
#endif
        return;
    }
    for (Bytes done = 0; done < bytes; done += kPiece) {
        const Bytes piece = std::min(kPiece, bytes - done);
        kernels::copy(own_.data(), next(piece), piece, false);
    }
}

void MemoryTouch::write(Bytes bytes) noexcept {
    if (bytes <= kCacheLine) {
        std::memcpy(somewhere(), own_.data(), bytes);
        // The store is asked for, not waited for: as a rank's store would be.
        asm volatile("" : : : "memory");
        return;
    }
    for (Bytes done = 0; done < bytes; done += kPiece) {
        const Bytes piece = std::min(kPiece, bytes - done);
        // Past the cache: the bytes go to the memory now, not when a line is needed.
        kernels::copy(next(piece), own_.data(), piece, true);
    }
}

TouchMaker MemoryTouch::maker(std::byte* memory, Bytes bytes) {
    return [memory, bytes](int rank, int ranks) {
        // Parts end on lines, so that no two ranks write to one.
        const Bytes part = bytes / static_cast<Bytes>(ranks) / kCacheLine * kCacheLine;
        return std::make_unique<MemoryTouch>(memory + part * static_cast<Bytes>(rank), part);
    };
}

}  // namespace emu

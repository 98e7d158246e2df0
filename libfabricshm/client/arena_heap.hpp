// ArenaHeap: malloc and free for memory of an arena, without a round trip for most blocks.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/heap.hpp"

namespace fabricshm {

struct HeapRegion {
    std::uint64_t id = 0;
    std::byte* base = nullptr;  // aligned to 4096
    Bytes bytes = 0;
};

/// Where the heap gets its regions from: the daemon, or a test.
/// Used by one heap, from any of its threads at once.
class RegionSource {
  public:
    virtual ~RegionSource() = default;
    /// kNoMemory when there is no room for as much. May block; is never called under a lock that
    /// allocate() of small blocks needs.
    virtual Result<HeapRegion> take(Bytes bytes) = 0;
    virtual void give_back(std::uint64_t region_id) noexcept = 0;
};

/// Cuts small blocks from larger regions: the first has a 64th of the arena, each further one twice
/// as much, up to 64 MiB, or what fits. So the heaps of many sessions share a small arena, and a
/// busy one asks seldom. A block of more than 16 MiB has a region of its own. An empty region goes
/// back, but for the last one. Thread-safe.
class ArenaHeap {
  public:
    static constexpr Bytes kMaxPiece = 64 * kMiB;
    static constexpr Bytes kMinPiece = 256 * kKiB;
    static constexpr Bytes kBigBlock = 16 * kMiB;

    ArenaHeap(std::unique_ptr<RegionSource> source, Bytes arena_bytes);
    ArenaHeap(const ArenaHeap&) = delete;
    ArenaHeap& operator=(const ArenaHeap&) = delete;

    /// At least `bytes`, 64-byte aligned. kNoMemory, or what the source says.
    Result<std::byte*> allocate(Bytes bytes);

    /// Gives a block back. False, and nothing happens, when it is none of this heap's: also when it
    /// was given back already.
    bool release(std::byte* block) noexcept;

  private:
    // A region that is cut into blocks.
    struct Piece {
        Piece(const HeapRegion& region) : id(region.id), heap(region.base, region.bytes) {}
        std::uint64_t id;
        Heap heap;
    };
    using Pieces = std::map<std::byte*, std::unique_ptr<Piece>>;

    Result<std::byte*> allocate_big(Bytes bytes);
    std::byte* from_pieces(Bytes bytes) noexcept;
    Result<std::byte*> from_new_piece(Bytes bytes);

    const std::unique_ptr<RegionSource> source_;
    std::mutex growing_;  // one region at a time is asked for; taken before mutex_
    Bytes next_piece_;    // under growing_
    std::mutex mutex_;
    Pieces pieces_;                            // by first byte
    std::map<std::byte*, std::uint64_t> big_;  // block -> region
};

}  // namespace fabricshm

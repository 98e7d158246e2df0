#include "emu/faults/pool_filler.hpp"

#include <unistd.h>

namespace emu {

namespace {

constexpr std::uint64_t kMin = std::uint64_t{2} << 20;
constexpr std::uint64_t kMax = std::uint64_t{1} << 40;
// Below the daemon's limit for a user (64 arenas by default); halving gets there with about 20.
constexpr int kMaxArenas = 64;

// All that the arena has, and all that it can grow by. Returns the bytes.
std::uint64_t fill(fabricshm_arena* arena) {
    std::uint64_t taken = 0;
    for (std::uint64_t bytes = fabricshm_arena_bytes(arena); bytes >= kMin;) {
        fabricshm_region region{};
        if (fabricshm_region_create(arena, bytes, &region) != FABRICSHM_OK) {
            bytes /= 2;
            continue;
        }
        taken += region.bytes;
    }
    return taken;
}

}  // namespace

PoolFiller::PoolFiller(const std::string& socket) {
    // A trainer like any other: whatever refuses it memory would refuse a trainer as well.
    fabricshm_session_options options{};
    options.struct_size = sizeof options;
    options.socket = socket.c_str();
    options.label = "fabric-faults";
    if (fabricshm_session_open(&options, &session_) != FABRICSHM_OK) return;
    // Halves what it asks for each time that is too much: the arenas together are all there is, but
    // for less than the least.
    int made = 0;
    for (std::uint64_t bytes = kMax; bytes >= kMin && made < kMaxArenas;) {
        fabricshm_arena* arena = nullptr;
        const std::string name =
            // Two runs may fill one pool.
            "fabric-faults-" + std::to_string(::getpid()) + "-" + std::to_string(made);
        if (fabricshm_arena_open(session_, name.c_str(), bytes, 0, &arena) != FABRICSHM_OK) {
            bytes /= 2;
            continue;
        }
        taken_ += fill(arena);
        ++made;
    }
}

}  // namespace emu

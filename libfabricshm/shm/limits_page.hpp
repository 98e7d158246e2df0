// The page on which the daemon publishes what the processes of a vGPU may use. docs/vgpu.md.
//
//   0     magic, version        written once, when the file is made
//   64    serial                rises with every change; 0: nothing was written yet
//   128   image of even serials, 32 words
//   384   image of odd serials, 32 words
//
// One writer, the daemon; all others have a descriptor that can't be mapped for writing. There are
// two images, where a seqlock has one, so that a daemon killed in the middle of a change leaves the
// last whole one: the next one is written to the other place, and counts once the serial says so.

#pragma once

#include <cstdint>
#include <optional>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/seqlock.hpp"

namespace fabricshm {

/// What is in force. Plain data; bytes are of the GPU's memory.
struct Limits {
    std::uint64_t serial = 0;
    std::uint64_t quota_bytes = 0;  // what the daemon counts for the vGPU
    /// Smaller while the quota shrinks: nothing is granted above it. Larger while there is no room
    /// on the GPU to grow into.
    std::uint64_t target_bytes = 0;
    std::uint64_t context_bytes = 0;    // counted for every context of a process
    std::uint64_t share_percent = 100;  // of the GPU's time
    // What the configuration said, for the next daemon, which thereby knows what was changed live.
    std::uint64_t configured_bytes = 0;
    std::uint64_t configured_percent = 0;  // 0: a page from before this word
    std::uint64_t wait_ms = 0;     // so long an allocation waits for room before it is refused
    std::uint64_t most_bytes = 0;  // that the quota can ever be: the GPU less its reserve

    /// Up to where allocations are granted.
    std::uint64_t grant_bytes() const noexcept {
        return target_bytes < quota_bytes ? target_bytes : quota_bytes;
    }
};

struct LimitsPage {
    static constexpr std::uint32_t kMagic = 0x4c555056;  // "VPUL"
    static constexpr std::uint32_t kVersion = 1;
    static constexpr int kWords = 32;

    std::uint32_t magic;
    std::uint32_t version;
    alignas(64) SharedWord serial;
    alignas(64) SharedWord image[2][kWords];
};
inline constexpr Bytes kLimitsPageBytes = kPageBytes;
static_assert(sizeof(LimitsPage) <= kLimitsPageBytes);

/// Makes an empty file's page one without limits yet. By the daemon.
void format_limits(LimitsPage& page) noexcept;

/// Whether it is a page of this version.
bool is_limits_page(const LimitsPage& page) noexcept;

/// Publishes `limits`; its serial is ignored. By the daemon, one thread at a time.
void write_limits(LimitsPage& page, const Limits& limits) noexcept;

/// What is in force; nothing before the first write_limits(), and when the page changes faster than
/// it can be read. Never waits.
std::optional<Limits> read_limits(const LimitsPage& page) noexcept;

}  // namespace fabricshm

// The directive page: what the daemon asks of one session. docs/shm_layout.md, docs/telemetry.md.
//
//   magic, version | sequence, image (100 words)
//
// Written by the daemon alone; the session's descriptor cannot be mapped for writing. All members
// of a group get the same image, but they read it at different moments: let rank 0 read and
// broadcast where they have to act alike.

#pragma once

#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/seqlock.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kDirectiveMagic = 0x3145524942524146;
inline constexpr std::uint32_t kDirectiveVersion = 1;

struct DirectiveImage {
    std::uint64_t serial;    // 0: none yet; rises with every change
    std::uint64_t decision;  // its id in the decision journal
    std::uint64_t group_id;  // whom it is about; 0: nobody in particular
    std::int32_t world;
    std::uint32_t sync_interval;          // steps between two averagings; 0: not set
    double batch_share[kPeersMax];        // by rank, sums to 1; 0: drained; all 0: not set
    std::uint32_t work_units[kPeersMax];  // micro-batches by rank; all 0: not set
};
inline constexpr std::size_t kDirectiveWords = 100;
static_assert(sizeof(DirectiveImage) == 8 * kDirectiveWords);

struct DirectivePage {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t reserved;
    SharedWord sequence;
    SharedWord image[kDirectiveWords];
};
static_assert(offsetof(DirectivePage, image) == 24);
static_assert(sizeof(DirectivePage) <= kPageFileBytes);

/// kInvalid unless ranks and shares are possible: the world 0 to kPeersMax, shares finite, not
/// negative and adding up to 1 (or all 0), nothing given beyond the world.
Result<void> check_directives(const DirectiveImage& image) noexcept;

/// Writes the page without directives over anything. For the daemon, before it hands it out.
void format_directives(std::byte* page) noexcept;

/// Replaces the directives. One writer at a time.
void write_directives(std::byte* page, const DirectiveImage& image) noexcept;

/// Whether the bytes are a page of this version: kCorrupt or kVersion. For the session, once.
Result<void> check_directive_page(const std::byte* page) noexcept;

/// Copies the directives if the sequence is not `seen`. What check_directives() refuses is taken
/// for kTorn, and the image stays as it was. Bounded, no system call; some 5 ns when unchanged.
PageRead read_directives(const std::byte* page, DirectiveImage& image,
                         std::uint64_t& seen) noexcept;

}  // namespace fabricshm

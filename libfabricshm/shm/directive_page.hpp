// The directive page: what the daemon asks of one session. docs/shm_layout.md, docs/telemetry.md.
//
//   magic, version | sequence, directives (388 words) | sequence, quotas (9 words)
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
inline constexpr std::uint32_t kDirectiveVersion = 2;

struct DirectiveImage {
    std::uint64_t serial;    // 0: none yet; rises with every change
    std::uint64_t decision;  // its id in the decision journal
    std::uint64_t group_id;  // the group that it is about; 0: none in particular
    std::int32_t world;
    std::uint32_t sync_interval;          // steps between two averagings; 0: not set
    double batch_share[kPeersMax];        // by rank, sums to 1; 0: drained; all 0: not set
    std::uint32_t work_units[kPeersMax];  // micro-batches by rank; all 0: not set
};
inline constexpr std::size_t kDirectiveWords = 388;
static_assert(sizeof(DirectiveImage) == 8 * kDirectiveWords);

/// What a device or a user may hold of the pool. A limit that shrinks is announced: from then on
/// nothing is granted beyond `target_bytes`, and at the deadline the limit is cut to that, or to
/// what is still used. No process loses memory that it holds.
struct LimitImage {
    std::uint64_t limit_bytes;   // kNoLimit: none
    std::uint64_t target_bytes;  // the same unless it shrinks
    std::uint64_t
        used_bytes;  // by all of them together; as of the last change, 0.1 s while it shrinks
    std::int64_t deadline_ns;  // CLOCK_MONOTONIC; 0: it does not shrink
};

/// The limits that a session's grants are held to.
struct QuotaImage {
    std::uint64_t serial;  // 0: nothing said yet; rises with every new limit or target
    LimitImage device;     // of all sessions of its device; what regions count against
    LimitImage user;       // of all arenas of its user
};
inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
inline constexpr std::size_t kQuotaWords = 9;
static_assert(sizeof(QuotaImage) == 8 * kQuotaWords);

struct DirectivePage {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t reserved;
    SharedWord sequence;
    SharedWord image[kDirectiveWords];
    char pad_[8];
    SharedWord quota_sequence;
    SharedWord quota[kQuotaWords];
};
static_assert(offsetof(DirectivePage, image) == 24);
static_assert(offsetof(DirectivePage, quota_sequence) == 49 * kCacheLine);
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

/// Replaces the quotas. One writer at a time.
void write_quotas(std::byte* page, const QuotaImage& image) noexcept;

/// Copies the quotas likewise. A target above its limit is taken for kTorn.
PageRead read_quotas(const std::byte* page, QuotaImage& image, std::uint64_t& seen) noexcept;

}  // namespace fabricshm

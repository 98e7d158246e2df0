// The link page: the links of an emulated machine, in the first bytes of an arena.
// docs/shm_layout.md, docs/emulator.md.
//
//   magic, version | LinkImage (what the daemon says) | LinkLive[16] | slots[8 * 32]
//
// An arena has one when its daemon emulates a machine, and then the ranks of its job share the
// links that the page describes. One more page of this form is the pool's, in a file of its own:
// there the ranks of all jobs charge their accesses, besides their own page. A process that
// scribbles into the first slows down its own job, into the second all of them.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kLinkMagic = 0x314b4e4c42524146;
inline constexpr std::uint32_t kLinkVersion = 1;
inline constexpr int kLinkNodes = 8;
inline constexpr int kLinkChannels = 16;
inline constexpr int kLinkHops = 16;
inline constexpr int kNodeSlots = 32;  // ranks of a node that count separately as load
inline constexpr std::size_t kLinkNameBytes = 32;

/// One stretch of the way from a node to the pool, and how much of the traffic takes it.
struct LinkHop {
    std::uint16_t channel;
    std::uint16_t permille;  // 1000: every byte; less where memory devices are interleaved
};

/// The way from one node to the pool. Times are real ones, slow motion included.
struct LinkRoute {
    std::uint32_t read_latency_ns;
    std::uint32_t write_latency_ns;
    std::uint16_t hop_count;
    std::uint16_t tail_permille;    // of the accesses take longer than the rest, ...
    std::uint32_t tail_latency_ns;  // ... by up to this
    LinkHop hops[kLinkHops];
};

/// What carries bytes: a link or a memory device.
struct LinkChannel {
    char name[kLinkNameBytes];
    double read_ns_per_byte;  // 0: as fast as this machine
    double write_ns_per_byte;
    std::uint32_t nodes;               // bit n: node n sends over it
    std::uint32_t half_duplex;         // 1: reads and writes share it
    std::uint32_t knee_ranks;          // with more ranks than these at once, 0: never,
    std::uint32_t knee_loss_permille;  // ... each further one costs so much of the bandwidth
};

/// An emulated machine, worked out to what a rank needs to know. Plain data: the daemon's copy, the
/// bytes in the page and a client's checked copy have this one form.
struct LinkImage {
    char name[kLinkNameBytes];
    std::uint32_t node_count;
    std::uint32_t channel_count;
    std::uint32_t slow_motion;  // every time is so many times longer than the machine's; 1: none
    std::uint16_t incoherent;   // 1: its hosts do not see into each other's caches
    std::uint16_t seed;         // of which accesses are late, and by how much
    LinkRoute routes[kLinkNodes];
    LinkChannel channels[kLinkChannels];
};
static_assert(sizeof(LinkRoute) == 80 && sizeof(LinkChannel) == 64);
static_assert(sizeof(LinkImage) == 48 + 640 + 1024);

/// Until when a channel is taken, in nanoseconds of CLOCK_MONOTONIC. A line for each direction.
struct alignas(kCachePair) LinkLive {
    std::atomic<std::uint64_t> read_until;
    char pad_[kCacheLine - 8];
    std::atomic<std::uint64_t> write_until;
    char pad2_[kCacheLine - 8];
};

struct LinkPage {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t reserved;
    LinkImage image;
    char pad_[kCachePair - (16 + sizeof(LinkImage)) % kCachePair];
    LinkLive live[kLinkChannels];
    // Until when each rank is busy with the pool: [node * kNodeSlots + rank % kNodeSlots]. A rank
    // that dies stops counting by itself, when its time has passed.
    std::atomic<std::uint64_t> slots[kLinkNodes * kNodeSlots];
};
static_assert(offsetof(LinkPage, live) == 1792);
static_assert(offsetof(LinkPage, slots) == 3840);

/// What the page takes at the start of an arena.
inline constexpr Bytes kLinkPageBytes = 8192;
static_assert(sizeof(LinkPage) <= kLinkPageBytes);

/// kCorrupt unless every count, name and number is one that a daemon would have written.
Result<void> check_links(const LinkImage& image) noexcept;

/// Writes the page; its bytes may hold anything before. For the daemon, before any reply that names
/// the arena.
void format_links(std::byte* page, const LinkImage& image) noexcept;

/// A checked copy of what the page says. kVersion or kCorrupt when it is not a link page.
Result<LinkImage> read_links(const std::byte* page) noexcept;

}  // namespace fabricshm

// The telemetry page: what one session says about itself, for the daemon to read.
// docs/shm_layout.md, docs/telemetry.md.
//
//   magic, version | sequence, head (18 words), sequence of waits
//                  | sequence, shards (16 x 4 words) | sequence, peers (256 x 5 words)
//                  | waits (8 x 11 words) | latencies (16 + 64 x 26 words)
//
// Five seqlocks: the head changes at every step and is three cache lines, so a sampler that visits
// thousands of pages touches no more than those; peers and shards are read less often. Peers lie
// one row behind the other: a small group writes few lines, and the rest of the file stays a hole.
// Written by one session, read by the daemon, to which every word of it is input.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/latency_rows.hpp"
#include "libfabricshm/shm/seqlock.hpp"
#include "libfabricshm/shm/wait_record.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kTelemetryMagic = 0x314d4c5442524146;
inline constexpr std::uint32_t kTelemetryVersion = 2;

/// Ranks that pages have a row for: all of the largest group.
inline constexpr int kPeersMax = 256;

/// Shards whose reads a session reports: the busiest ones.
inline constexpr int kShardsTold = 16;

/// What a session has read of one shard. Only rises while the session reports that shard; one that
/// was left out for a while or closed may come back with less.
struct ShardReads {
    std::uint64_t arena;  // with the next one: which shard. 0: none
    std::uint64_t shard;  // the region of its header
    std::uint64_t reads;  // that have ended, also those during which the owner wrote
    std::uint64_t bytes;  // the whole shard for each read: which part was read is not known
};

/// What this session did with the memory of one rank. Counters that only rise.
struct PeerCounters {
    std::uint64_t bytes_to;    // read from it or sent to it
    std::uint64_t read_bytes;  // by timed reads, here and below
    std::int64_t read_ns;
    std::uint64_t reads;
    std::int64_t latency_ns;  // the sum of what one line took in each of them
};

/// What a memory file of a page takes: of directives, and of telemetry.
inline constexpr Bytes kPageFileBytes = 4096;
inline constexpr Bytes kTelemetryFileBytes = 7 * kPageFileBytes;
/// Of a daemon that knows no latencies.
inline constexpr Bytes kShortTelemetryFileBytes = 3 * kPageFileBytes;

/// Counters and sums run since the first step of the session and only rise; a daemon that was
/// restarted finds them in the middle.
struct TelemetryImage {
    std::int64_t written_ns;  // CLOCK_MONOTONIC
    // Of the group that trains; 0, 0, -1, 0: none.
    std::uint64_t arena_id, group_id;
    std::int32_t rank, world;
    std::uint64_t steps, samples;
    // Sums over steps; step = compute + wait + comm + what the trainer did not call computing.
    std::int64_t step_ns, compute_ns, wait_ns, comm_ns;
    // Of the last step, NaN: not given. The norm of this rank's gradient, and of the merged one.
    double loss, gradient_norm, mean_gradient_norm;
    // Bytes of the pool held now, and refused so far. 0 in the page: in a sample the daemon has put
    // what its own records say.
    std::uint64_t memory_used, memory_denied;
    std::uint32_t queue, batch;       // units waiting; samples of the last step
    std::uint64_t directive_serial;   // in force here
    std::uint32_t sync_interval;      // in force here; 0: not set
    std::uint32_t flags;              // 0
    ShardReads shards[kShardsTold];   // the busiest first; after the last one all is 0
    std::uint64_t bytes_to_all;       // the sum over the peers; not in the page
    std::vector<PeerCounters> peers;  // by rank of the group above; those that are missing are 0
};

inline constexpr std::size_t kTelemetryHeadWords = 18;
inline constexpr std::size_t kPeerWords = sizeof(PeerCounters) / 8;
inline constexpr std::size_t kTelemetryShardWords = kShardsTold * sizeof(ShardReads) / 8;
static_assert(offsetof(TelemetryImage, shards) == 8 * kTelemetryHeadWords);
static_assert(kPeerWords == 5 && alignof(PeerCounters) == 8);

struct TelemetryPage {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t reserved;
    SharedWord head_sequence;
    SharedWord head[kTelemetryHeadWords];
    // Far from its words, so that a sample of a session that never waited touches none of the
    // file's pages that are holes: a read makes them memory.
    SharedWord waits_sequence;
    SharedWord latencies_sequence;  // likewise, and the next
    SharedWord latencies_used;      // rows in which there is something
    SharedWord shards_sequence;
    char pad2_[56];
    SharedWord shards[kTelemetryShardWords];
    SharedWord peers_sequence;
    char pad3_[56];
    SharedWord peers[kPeersMax][kPeerWords];
    // At the end, so that the version stayed: a library that does not know it leaves it 0.
    SharedWord waits[kWaitWords];
    // Behind what a library without them maps. Rows that were never used stay a hole.
    char pad4_[512];
    SharedWord failures[kLatencyKinds];
    SharedWord latencies[kLatencyRows][kLatencyWords];
};
static_assert(offsetof(TelemetryPage, shards_sequence) == 3 * kCacheLine);
static_assert(offsetof(TelemetryPage, peers_sequence) == 12 * kCacheLine);
static_assert(offsetof(TelemetryPage, peers) == 13 * kCacheLine);
static_assert(offsetof(TelemetryPage, waits) == 173 * kCacheLine);
static_assert(offsetof(TelemetryPage, failures) == kShortTelemetryFileBytes);
static_assert(sizeof(TelemetryPage) == 25728 && sizeof(TelemetryPage) <= kTelemetryFileBytes);

/// An image in which nothing has happened yet.
TelemetryImage empty_telemetry() noexcept;

/// Makes the empty page of zeros, of which it touches the first lines alone. For the daemon, before
/// it hands the page out.
void format_telemetry(std::byte* page) noexcept;

/// Whether the bytes are a page of this version: kCorrupt or kVersion. For the session, once.
Result<void> check_telemetry(const std::byte* page) noexcept;

/// Ranks that have a row: those of the image's group.
int peers_of(const TelemetryImage& image) noexcept;

/// Writes the head, or the rows of the group's ranks. One writer at a time; some 20 ns, and 50 ns
/// for eight ranks; no system call.
void write_telemetry_head(std::byte* page, const TelemetryImage& image) noexcept;
void write_telemetry_peers(std::byte* page, const TelemetryImage& image) noexcept;

/// Writes what was read of shards. As above, some 30 ns.
void write_telemetry_shards(std::byte* page, const TelemetryImage& image) noexcept;

/// Writes the waits that have become long. As above, some 30 ns.
void write_telemetry_waits(std::byte* page, const WaitRecord (&records)[kWaitsShown]) noexcept;

/// Writes the rows that are used. As above, some 25 ns for each. Only of a page of full length.
void write_telemetry_latencies(std::byte* page, const LatencyImage& image) noexcept;

/// Copies the waits and tames them. Other than kFresh: there are none. Bounded; any thread.
PageRead read_telemetry_waits(const std::byte* page, WaitRecord (&records)[kWaitsShown]) noexcept;

/// What a reader knows of a page: pass the same one again, and what did not change costs no copy.
struct TelemetrySeen {
    std::uint64_t head = 0;
    std::uint64_t peers = 0;
    std::uint64_t shards = 0;
};

/// Copies the rows that are used; those that are not, and all others than kFresh leave, are
/// anything. A session can write any numbers: what they mean is for LatencyReader to judge. `seen`
/// as above.
PageRead read_telemetry_latencies(const std::byte* page, LatencyImage& image,
                                  std::uint64_t& seen) noexcept;

/// Copies the head into `image` and tames it: whatever a hostile session wrote, afterwards times
/// are not negative, rank and world belong together, norms are finite or NaN. Bounded; any thread.
PageRead read_telemetry_head(const std::byte* page, TelemetryImage& image,
                             TelemetrySeen& seen) noexcept;

/// The same for the rows of the image's group, and their sum. Allocates when the group is larger
/// than the last one.
PageRead read_telemetry_peers(const std::byte* page, TelemetryImage& image, TelemetrySeen& seen);

/// The same for the shards: each at most once, and none after the first that is none.
PageRead read_telemetry_shards(const std::byte* page, TelemetryImage& image,
                               TelemetrySeen& seen) noexcept;

}  // namespace fabricshm

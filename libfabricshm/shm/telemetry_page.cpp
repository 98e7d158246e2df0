#include "libfabricshm/shm/telemetry_page.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

namespace fabricshm {

namespace {

TelemetryPage& page_of(std::byte* page) noexcept {
    return *reinterpret_cast<TelemetryPage*>(page);
}

const TelemetryPage& page_of(const std::byte* page) noexcept {
    return *reinterpret_cast<const TelemetryPage*>(page);
}

// The head is the begin of the image, see the assertion next to it.
const void* head_of(const TelemetryImage& image) noexcept {
    return &image.written_ns;
}

void tame(std::int64_t& nanoseconds) noexcept {
    nanoseconds = std::clamp<std::int64_t>(nanoseconds, 0, kBelievedNs);
}

void tame(std::uint64_t& count) noexcept {
    count = std::min(count, kBelievedCount);
}

// An infinite loss is a diverged training; readers of means over it get "not given".
void tame(double& value) noexcept {
    if (!std::isfinite(value)) value = std::numeric_limits<double>::quiet_NaN();
}

void tame_group(TelemetryImage& image) noexcept {
    const bool good = image.group_id != 0 && image.world >= 1 && image.world <= kWorldMax &&
                      image.rank >= 0 && image.rank < image.world;
    if (good) return;
    image.arena_id = image.group_id = 0;
    image.rank = -1;
    image.world = 0;
}

void tame_head(TelemetryImage& image) noexcept {
    tame_group(image);
    for (auto* time :
         {&image.written_ns, &image.step_ns, &image.compute_ns, &image.wait_ns, &image.comm_ns}) {
        tame(*time);
    }
    for (auto* count : {&image.steps, &image.samples, &image.memory_used, &image.memory_denied}) {
        tame(*count);
    }
    tame(image.loss);
    tame(image.gradient_norm);
    tame(image.mean_gradient_norm);
}

// A shard that is named twice would count twice.
void tame_shards(ShardReads (&shards)[kShardsTold]) noexcept {
    int kept = 0;
    for (const ShardReads& told : shards) {
        if (told.arena == 0 || told.shard == 0) break;
        const bool again = std::any_of(shards, shards + kept, [&](const ShardReads& one) {
            return one.arena == told.arena && one.shard == told.shard;
        });
        if (again) continue;
        ShardReads& tamed = shards[kept++] = told;
        tame(tamed.reads);
        tame(tamed.bytes);
    }
    std::fill(shards + kept, shards + kShardsTold, ShardReads{});
}

}  // namespace

TelemetryImage empty_telemetry() noexcept {
    TelemetryImage image{};
    image.rank = -1;
    image.loss = image.gradient_norm = image.mean_gradient_norm =
        std::numeric_limits<double>::quiet_NaN();
    return image;
}

void format_telemetry(std::byte* page) noexcept {
    // Not constructed: that would write 25 KiB for each session, most of which stay a hole.
    TelemetryPage* fresh = &page_of(page);
    fresh->version = kTelemetryVersion;
    fresh->magic = kTelemetryMagic;
    // Nothing is written yet, and a reader that has seen nothing (sequence 0) agrees.
    const TelemetryImage empty = empty_telemetry();
    seqlock_store(fresh->head, head_of(empty), kTelemetryHeadWords);
}

Result<void> check_telemetry(const std::byte* page) noexcept {
    if (page_of(page).magic != kTelemetryMagic) return Error{Errc::kCorrupt, 0, "telemetry page"};
    if (page_of(page).version != kTelemetryVersion) {
        return Error{Errc::kVersion, 0, "telemetry page"};
    }
    return {};
}

int peers_of(const TelemetryImage& image) noexcept {
    return image.world > kPeersMax ? 0 : std::max(image.world, 0);
}

void write_telemetry_head(std::byte* page, const TelemetryImage& image) noexcept {
    TelemetryPage& shared = page_of(page);
    seqlock_begin(shared.head_sequence);
    seqlock_store(shared.head, head_of(image), kTelemetryHeadWords);
    seqlock_end(shared.head_sequence);
}

void write_telemetry_peers(std::byte* page, const TelemetryImage& image) noexcept {
    TelemetryPage& shared = page_of(page);
    // Rows that were never needed are 0 in the page already.
    const auto peers = std::min(image.peers.size(), static_cast<std::size_t>(peers_of(image)));
    seqlock_begin(shared.peers_sequence);
    seqlock_store(shared.peers[0], image.peers.data(), peers * kPeerWords);
    seqlock_end(shared.peers_sequence);
}

void write_telemetry_shards(std::byte* page, const TelemetryImage& image) noexcept {
    TelemetryPage& shared = page_of(page);
    seqlock_begin(shared.shards_sequence);
    seqlock_store(shared.shards, image.shards, kTelemetryShardWords);
    seqlock_end(shared.shards_sequence);
}

void write_telemetry_waits(std::byte* page, const WaitRecord (&records)[kWaitsShown]) noexcept {
    TelemetryPage& shared = page_of(page);
    seqlock_begin(shared.waits_sequence);
    seqlock_store(shared.waits, records, kWaitWords);
    seqlock_end(shared.waits_sequence);
}

void write_telemetry_latencies(std::byte* page, const LatencyImage& image) noexcept {
    TelemetryPage& shared = page_of(page);
    seqlock_begin(shared.latencies_sequence);
    seqlock_store(&shared.latencies_used, &image.used, 1);
    seqlock_store(shared.failures, image.failures, kLatencyKinds);
    for_each_bit(image.used, [&](int row) {
        seqlock_store(shared.latencies[row], &image.rows[row], kLatencyWords);
    });
    seqlock_end(shared.latencies_sequence);
}

PageRead read_telemetry_latencies(const std::byte* page, LatencyImage& image,
                                  std::uint64_t& seen) noexcept {
    const TelemetryPage& shared = page_of(page);
    std::uint64_t sequence = 0;
    const PageRead read = seqlock_read(shared.latencies_sequence, seen, sequence, [&] {
        seqlock_load(&shared.latencies_used, &image.used, 1);
        seqlock_load(shared.failures, image.failures, kLatencyKinds);
        for_each_bit(image.used, [&](int row) {
            seqlock_load(shared.latencies[row], &image.rows[row], kLatencyWords);
        });
    });
    if (read == PageRead::kFresh) seen = sequence;
    return read;
}

PageRead read_telemetry_waits(const std::byte* page, WaitRecord (&records)[kWaitsShown]) noexcept {
    const TelemetryPage& shared = page_of(page);
    std::uint64_t sequence = 0;
    // A sequence of 0: nothing was ever written.
    const PageRead read = seqlock_read(shared.waits_sequence, 0, sequence,
                                       [&] { seqlock_load(shared.waits, records, kWaitWords); });
    if (read != PageRead::kFresh) {
        std::fill(std::begin(records), std::end(records), WaitRecord{});
        return read;
    }
    for (WaitRecord& record : records) tame(record);
    return read;
}

PageRead read_telemetry_head(const std::byte* page, TelemetryImage& image,
                             TelemetrySeen& seen) noexcept {
    const TelemetryPage& shared = page_of(page);
    std::uint64_t copy[kTelemetryHeadWords];
    std::uint64_t sequence = 0;
    const PageRead read = seqlock_read(shared.head_sequence, seen.head, sequence, [&] {
        seqlock_load(shared.head, copy, kTelemetryHeadWords);
    });
    if (read != PageRead::kFresh) return read;
    const std::uint64_t group = image.group_id;
    std::memcpy(&image.written_ns, copy, sizeof copy);
    tame_head(image);
    if (image.group_id != group) {
        // The rows are those of the other group's ranks, until they are read again.
        image.peers.clear();
        image.bytes_to_all = seen.peers = 0;
    }
    seen.head = sequence;
    return read;
}

PageRead read_telemetry_peers(const std::byte* page, TelemetryImage& image, TelemetrySeen& seen) {
    const TelemetryPage& shared = page_of(page);
    const auto peers = static_cast<std::size_t>(peers_of(image));
    PeerCounters copy[kPeersMax];  // only as far as it is loaded
    std::uint64_t sequence = 0;
    const PageRead read = seqlock_read(shared.peers_sequence, seen.peers, sequence, [&] {
        seqlock_load(shared.peers[0], copy, peers * kPeerWords);
    });
    if (read != PageRead::kFresh) return read;
    image.peers.assign(copy, copy + peers);
    image.bytes_to_all = 0;
    for (PeerCounters& peer : image.peers) {
        for (auto* count : {&peer.bytes_to, &peer.read_bytes, &peer.reads}) tame(*count);
        for (auto* time : {&peer.read_ns, &peer.latency_ns}) tame(*time);
        // 256 times what tame() leaves is more than a word holds.
        image.bytes_to_all = std::min(image.bytes_to_all + peer.bytes_to, kBelievedCount);
    }
    seen.peers = sequence;
    return read;
}

PageRead read_telemetry_shards(const std::byte* page, TelemetryImage& image,
                               TelemetrySeen& seen) noexcept {
    const TelemetryPage& shared = page_of(page);
    ShardReads copy[kShardsTold];
    std::uint64_t sequence = 0;
    const PageRead read = seqlock_read(shared.shards_sequence, seen.shards, sequence, [&] {
        seqlock_load(shared.shards, copy, kTelemetryShardWords);
    });
    if (read != PageRead::kFresh) return read;
    tame_shards(copy);
    std::copy(std::begin(copy), std::end(copy), image.shards);
    seen.shards = sequence;
    return read;
}

}  // namespace fabricshm

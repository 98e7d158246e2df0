#include "libfabricshm/client/telemetry.hpp"

#include <fcntl.h>

#include <algorithm>
#include <utility>

namespace fabricshm {

namespace {

// The daemon samples the counts of one session once per second.
constexpr std::int64_t kShardsEveryNs = 100'000'000;
constexpr std::int64_t kLatenciesEveryNs = 1'000'000'000;

// What a page has to say: the sums, less what pages of daemons before have had.
LatencyImage difference(const LatencyImage& all, const LatencyImage& before) noexcept {
    LatencyImage left{};
    left.used = all.used;
    for (int kind = 0; kind < kLatencyKinds; ++kind) {
        left.failures[kind] = all.failures[kind] - before.failures[kind];
    }
    for_each_bit(all.used, [&](int index) {
        LatencyRow& row = left.rows[index];
        row = all.rows[index];
        const LatencyRow& less = before.rows[index];
        for (int bucket = 0; bucket <= kLatencyEnds; ++bucket) {
            row.counts[bucket] -= less.counts[bucket];
        }
        row.sum_ns -= less.sum_ns;
    });
    return left;
}

// The daemon made the file, but a daemon is checked like any other process: a file that could
// shrink would be a SIGBUS in the middle of training.
Result<Mapping> map_page(const Fd& file, Bytes bytes, bool writable) {
    const int seals = ::fcntl(file.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return Error{Errc::kCorrupt, 0, "page file"};
    MapOptions options;
    options.writable = writable;
    return Mapping::map(file, 0, bytes, options);
}

}  // namespace

// Another group has other ranks: what was counted by rank starts from zero.
void Telemetry::take_group(const StepInfo& info) {
    if (info.group_id == 0 || info.group_id == image_.group_id) return;
    image_.arena_id = info.arena_id;
    image_.group_id = info.group_id;
    image_.rank = info.rank;
    image_.world = info.world;
    image_.peers.assign(static_cast<std::size_t>(peers_of(image_)), PeerCounters{});
}

// What the groups of this session have counted since the last step.
void Telemetry::collect(std::int64_t length_ns, std::int64_t compute_ns) {
    std::int64_t wait_ns = 0;
    std::int64_t comm_ns = 0;
    for (Metered& metered : meters_) {
        const auto meter = metered.meter.lock();
        if (meter == nullptr) continue;
        const bool trains = metered.group_id == image_.group_id;
        const MeterSums sums = meter->sums();
        wait_ns += sums.wait_ns - metered.last.wait_ns;
        comm_ns += sums.comm_ns - metered.last.comm_ns;
        for (std::size_t rank = 0; trains && rank < image_.peers.size(); ++rank) {
            image_.peers[rank].bytes_to += sums.bytes_to[rank] - metered.last.bytes_to[rank];
        }
        metered.last = sums;
    }
    std::erase_if(meters_, [](const Metered& metered) { return metered.meter.expired(); });
    // Operations on other threads run concurrently with the computing: no more than the step is
    // theirs.
    wait_ns = std::clamp<std::int64_t>(wait_ns, 0, length_ns);
    comm_ns = std::clamp<std::int64_t>(comm_ns, 0, length_ns - wait_ns);
    image_.step_ns += length_ns;
    image_.wait_ns += wait_ns;
    image_.comm_ns += comm_ns;
    const std::int64_t left = length_ns - wait_ns - comm_ns;
    image_.compute_ns += compute_ns < 0 ? left : std::min(compute_ns, length_ns);
}

void Telemetry::step(const StepInfo& info, std::int64_t now_ns) {
    const std::lock_guard lock(mutex_);
    take_group(info);
    ++image_.steps;
    image_.samples += info.samples;
    image_.batch = static_cast<std::uint32_t>(std::min<std::uint64_t>(info.samples, UINT32_MAX));
    image_.queue = info.queue;
    image_.loss = info.loss;
    image_.gradient_norm = info.gradient_norm;
    image_.mean_gradient_norm = info.mean_gradient_norm;
    // What came before the first call (loading, compiling) is no step.
    const bool first = last_step_ns_ == 0;
    collect(first ? 0 : std::max<std::int64_t>(now_ns - last_step_ns_, 0), info.compute_ns);
    last_step_ns_ = now_ns;
    image_.written_ns = now_ns;
    publish();
    // Relaxed here and below: the time guards nothing; the lock does.
    if (now_ns >= shards_due_ns_.load(std::memory_order_relaxed)) publish_shards(now_ns);
    if (now_ns >= latencies_due_ns_) publish_latencies(now_ns);
}

void Telemetry::add_meter(std::uint64_t group_id, const std::shared_ptr<Meter>& meter) {
    const std::lock_guard lock(mutex_);
    meters_.push_back({group_id, meter, {}});
    meter->set_latencies(&latencies_);
    if (monotonic_clock_ns() < trace_until_ns_) meter->set_trace(trace_);
}

int Telemetry::read_due(std::int64_t now_ns) {
    constexpr std::int64_t kBetweenReads = 200'000'000;
    const std::lock_guard lock(mutex_);
    const int peers = peers_of(image_);
    if (!telemetry_ || peers < 2 || now_ns - last_read_ns_ < kBetweenReads) return -1;
    last_read_ns_ = now_ns;
    next_peer_ = (next_peer_ + 1) % peers;
    if (next_peer_ == image_.rank) next_peer_ = (next_peer_ + 1) % peers;
    return next_peer_;
}

void Telemetry::note_read(int peer, const PeerRead& read) {
    const std::lock_guard lock(mutex_);
    if (peer < 0 || static_cast<std::size_t>(peer) >= image_.peers.size()) return;
    PeerCounters& counters = image_.peers[static_cast<std::size_t>(peer)];
    counters.read_bytes += read.bytes;
    counters.read_ns += read.ns;
    counters.latency_ns += read.latency_ns;
    ++counters.reads;
}

// Under the lock.
void Telemetry::publish() noexcept {
    if (!telemetry_) return;
    image_.directive_serial = in_force_.serial;
    image_.sync_interval = in_force_.sync_interval;
    write_telemetry_head(telemetry_.data(), image_);
    write_telemetry_peers(telemetry_.data(), image_);
}

std::shared_ptr<ShardMeter> Telemetry::add_shard(std::uint64_t arena, std::uint64_t shard) {
    const std::lock_guard lock(mutex_);
    return shards_.add(arena, shard);
}

void Telemetry::count_read(ShardMeter& meter, Bytes bytes, std::int64_t now_ns) noexcept {
    meter.count(bytes);
    if (now_ns < shards_due_ns_.load(std::memory_order_relaxed)) return;
    // Without the lock, another thread is writing: the next read is soon enough.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) publish_shards(now_ns);
}

void Telemetry::tell_shards(std::int64_t now_ns) noexcept {
    const std::lock_guard lock(mutex_);
    publish_shards(now_ns);
}

// Under the lock.
void Telemetry::publish_shards(std::int64_t now_ns) noexcept {
    shards_due_ns_.store(now_ns + kShardsEveryNs, std::memory_order_relaxed);
    if (!telemetry_ || shards_.size() == 0) return;
    shards_.tell(image_.shards);
    write_telemetry_shards(telemetry_.data(), image_);
}

int Telemetry::show_wait(int place, const WaitRecord& record) noexcept {
    const std::lock_guard lock(mutex_);
    if (place < 0) {
        const auto* free = std::ranges::find(waits_, std::uint64_t{0}, &WaitRecord::group_id);
        if (free == std::end(waits_)) return -1;
        place = static_cast<int>(free - waits_);
    }
    waits_[place] = record;
    publish_waits();
    return place;
}

void Telemetry::hide_wait(int place) noexcept {
    const std::lock_guard lock(mutex_);
    waits_[place] = WaitRecord{};
    publish_waits();
}

// Under the lock.
void Telemetry::publish_waits() noexcept {
    if (telemetry_) write_telemetry_waits(telemetry_.data(), waits_);
}

void Telemetry::tell_latencies(std::int64_t now_ns) noexcept {
    const std::lock_guard lock(mutex_);
    publish_latencies(now_ns);
}

// Under the lock.
void Telemetry::publish_latencies(std::int64_t now_ns) noexcept {
    latencies_due_ns_ = now_ns + kLatenciesEveryNs;
    // The page of a daemon that does not know them has no place for them.
    if (telemetry_.size() < kTelemetryFileBytes) return;
    latencies_.copy_to(latencies_told_);
    const bool is_any = latencies_told_.used != 0 ||
                        std::ranges::any_of(latencies_told_.failures,
                                            [](std::uint64_t count) { return count != 0; });
    if (!is_any) return;
    write_telemetry_latencies(telemetry_.data(), difference(latencies_told_, latencies_before_));
}

DirectiveImage Telemetry::directives() {
    const std::lock_guard lock(mutex_);
    if (!directives_) return in_force_;
    DirectiveImage fresh;
    const PageRead read = read_directives(directives_.data(), fresh, directives_seen_);
    // A daemon that was just started has decided nothing yet: its predecessor's word holds.
    if (read == PageRead::kFresh && fresh.serial != 0) in_force_ = fresh;
    return in_force_;
}

QuotaImage Telemetry::quotas() {
    const std::lock_guard lock(mutex_);
    if (!directives_) return quotas_;
    QuotaImage fresh;
    const PageRead read = read_quotas(directives_.data(), fresh, quotas_seen_);
    if (read == PageRead::kFresh && fresh.serial != 0) quotas_ = fresh;
    return quotas_;
}

Result<void> Telemetry::take_telemetry(const Fd& file) {
    auto mapped = map_page(file, kTelemetryFileBytes, true);
    if (!mapped.ok()) mapped = map_page(file, kShortTelemetryFileBytes, true);
    FABRIC_TRY(Mapping page, std::move(mapped));
    FABRIC_TRY_VOID(check_telemetry(page.data()));
    const std::lock_guard lock(mutex_);
    telemetry_ = std::move(page);
    latencies_before_ = latencies_told_;
    latencies_due_ns_ = 0;
    // What was counted before there was a page, or in the page of the last daemon.
    if (last_step_ns_ != 0) publish();
    const bool waits =
        std::ranges::any_of(waits_, [](const WaitRecord& record) { return record.group_id != 0; });
    if (waits) publish_waits();
    // The next read reports all before it.
    shards_due_ns_.store(0, std::memory_order_relaxed);
    return {};
}

// Under the lock. False: an operation has it still.
bool Telemetry::stop_trace() noexcept {
    bool is_quiet = true;
    for (Metered& metered : meters_) {
        const auto meter = metered.meter.lock();
        if (meter && !meter->stop_trace()) is_quiet = false;
    }
    trace_until_ns_ = 0;
    return is_quiet;
}

// Under the lock, while no meter has the trace.
Result<void> Telemetry::map_ring(const Fd& file) {
    // Looked at apart, so that a file that is none does not take the place of one that is.
    FABRIC_TRY(Mapping fresh, map_page(file, kTraceFileBytes, true));
    FABRIC_TRY_VOID(check_trace(fresh.data()));
    if (ring_) {
        FABRIC_TRY_VOID(ring_.replace(file));
    } else {
        ring_ = std::move(fresh);
    }
    // So that no operation takes the page faults.
    auto& ring = *reinterpret_cast<TraceRing*>(ring_.data());
    constexpr std::size_t kSlotsOfPage = kPageFileBytes / sizeof(TraceSlot);
    for (std::size_t slot = 0; slot < kTraceRecords; slot += kSlotsOfPage) {
        // Relaxed, and added, not stored: it changes nothing, whatever is in the file.
        ring.slots[slot].sequence.fetch_add(0, std::memory_order_relaxed);
    }
    ring.slots[kTraceRecords - 1].sequence.fetch_add(0, std::memory_order_relaxed);
    return {};
}

Result<void> Telemetry::take_trace(const proto::Trace& trace, const Fd& file) {
    const std::lock_guard lock(mutex_);
    const bool is_quiet = stop_trace();
    if (trace.bytes == 0) return {};
    if (!is_quiet) return Error{Errc::kBusy, 0, "trace: an operation is stopped in the last one"};
    if (trace.bytes != kTraceFileBytes) return Error{Errc::kVersion, 0, "trace file"};
    FABRIC_TRY_VOID(map_ring(file));
    trace_.begin_trace(ring_.data(), trace.until_ns,
                       {trace.base_ns, trace.base_ticks, trace.scale});
    trace_until_ns_ = trace.until_ns;
    for (Metered& metered : meters_) {
        if (const auto meter = metered.meter.lock()) meter->set_trace(trace_);
    }
    return {};
}

Result<void> Telemetry::take_directives(const Fd& file) {
    FABRIC_TRY(Mapping page, map_page(file, kPageFileBytes, false));
    FABRIC_TRY_VOID(check_directive_page(page.data()));
    const std::lock_guard lock(mutex_);
    directives_ = std::move(page);
    directives_seen_ = 0;
    quotas_seen_ = 0;
    return {};
}

}  // namespace fabricshm

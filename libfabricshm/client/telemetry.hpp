// Telemetry: what a session reports about itself to the daemon, and the directives it gets.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/client/shard_meters.hpp"
#include "libfabricshm/collective/meter.hpp"
#include "libfabricshm/collective/operation_trace.hpp"
#include "libfabricshm/collective/peer_read.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/proto/messages.hpp"
#include "libfabricshm/shm/directive_page.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricshm {

/// One step, as the trainer describes it.
struct StepInfo {
    std::uint64_t samples = 0;
    double loss;  // NaN: not known, here and below
    double gradient_norm;
    double mean_gradient_norm;
    std::int64_t compute_ns = -1;  // -1: what is left of the step
    std::uint32_t queue = 0;
    // Of the group that trains; a group_id of 0: as in the last step.
    std::uint64_t arena_id = 0, group_id = 0;
    std::int32_t rank = -1, world = 0;
};

/// Keeps the counters of a session, with pages or without: before the daemon has given them, while
/// it is away, and when it gives none at all. Thread-safe; never blocks but for another thread of
/// this process that is in here for some 100 ns.
class Telemetry {
  public:
    /// Counts a step that ended at `now_ns` (CLOCK_MONOTONIC) and writes the page if there is one.
    void step(const StepInfo& info, std::int64_t now_ns);

    /// The session has joined a group: what its operations wait and move counts from here on.
    void add_meter(std::uint64_t group_id, const std::shared_ptr<Meter>& meter);

    /// The rank of the group of the last step whose memory should be read and timed now, or -1. A
    /// fifth of a second passes between two reads, so that they cost nothing that shows.
    int read_due(std::int64_t now_ns);
    void note_read(int peer, const PeerRead& read);

    /// The session has opened a shard: where its reads are counted from here on.
    std::shared_ptr<ShardMeter> add_shard(std::uint64_t arena, std::uint64_t shard);

    /// Counts a read that has ended. Ten times per second one of them, or a step, writes the counts
    /// into the page; the others cost two additions. Never waits.
    void count_read(ShardMeter& meter, Bytes bytes, std::int64_t now_ns) noexcept;

    /// Writes them now: a handle is closed, and no read may follow.
    void tell_shards(std::int64_t now_ns) noexcept;

    /// Writes the latencies of collectives now: the session ends. Steps do it once per second.
    void tell_latencies(std::int64_t now_ns) noexcept;

    /// Shows a wait that has become long at `place`, or at a free one for -1. Its place, or -1 when
    /// all are taken.
    int show_wait(int place, const WaitRecord& record) noexcept;
    void hide_wait(int place) noexcept;

    /// What the daemon says of a trace: the operations of all groups, also of those that are joined
    /// later, go into the ring in `file` until its end, in place of a trace before; or no longer.
    /// kVersion for another size, kCorrupt as for pages; kBusy: a thread was stopped in the middle
    /// of the last trace, and nothing is traced.
    Result<void> take_trace(const proto::Trace& trace, const Fd& file);

    /// The directives in force; serial 0: none.
    DirectiveImage directives();

    /// The limits that the daemon last published; serial 0: none yet.
    QuotaImage quotas();

    /// A page that the daemon gave, in place of the last one. kCorrupt when it is none, or not one
    /// that stays mapped whatever the other end does.
    Result<void> take_telemetry(const Fd& file);
    Result<void> take_directives(const Fd& file);

  private:
    struct Metered {
        std::uint64_t group_id;
        std::weak_ptr<Meter> meter;  // of the group, and goes with it
        MeterSums last;
    };

    void take_group(const StepInfo& info);
    void collect(std::int64_t length_ns, std::int64_t compute_ns);
    void publish() noexcept;
    void publish_shards(std::int64_t now_ns) noexcept;
    void publish_waits() noexcept;
    void publish_latencies(std::int64_t now_ns) noexcept;
    bool stop_trace() noexcept;
    Result<void> map_ring(const Fd& file);

    std::mutex mutex_;
    TelemetryImage image_ = empty_telemetry();
    std::int64_t last_step_ns_ = 0;  // 0: none yet
    std::int64_t last_read_ns_ = 0;
    int next_peer_ = 0;
    std::vector<Metered> meters_;
    ShardMeters shards_;
    LatencyCounters latencies_;        // outlive every operation, as the ring does
    LatencyImage latencies_told_{};    // as they were written last
    LatencyImage latencies_before_{};  // of them: into pages before this one
    std::int64_t latencies_due_ns_ = 0;
    WaitRecord waits_[kWaitsShown]{};             // group_id 0: the place is free
    std::atomic<std::int64_t> shards_due_ns_{0};  // when to write what was read of shards
    Mapping telemetry_;
    Mapping directives_;
    std::uint64_t directives_seen_ = 0;  // sequence of the page
    DirectiveImage in_force_{};
    std::uint64_t quotas_seen_ = 0;  // likewise
    QuotaImage quotas_{};
    Mapping ring_;          // of the last trace; never unmapped, since an operation may be in it
    OperationTrace trace_;  // likewise
    std::int64_t trace_until_ns_ = 0;  // 0: none is on
};

}  // namespace fabricshm

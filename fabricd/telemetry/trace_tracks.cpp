#include "fabricd/telemetry/trace_tracks.hpp"

#include <iterator>

#include "libfabricshm/shm/latency_rows.hpp"

namespace fabricd {

using fabricshm::TraceRecord;

namespace {

// The messages among them (nullptr) are not traced.
bool is_collective(std::uint8_t kind) noexcept {
    return kind < std::size(fabricshm::kLatencyKindNames) &&
           fabricshm::kLatencyKindNames[kind] != nullptr;
}

bool follows(const TraceRecord& record, const TraceTrack& track) noexcept {
    return record.rank == track.rank && record.world == track.world &&
           record.begin_ns >= track.end_ns && record.epoch >= track.next_epoch;
}

}  // namespace

TraceTracks::Place TraceTracks::place(const TraceRecord& record, const TraceSpan& span) {
    constexpr int kAnyKind = 256;
    const bool in_span = record.begin_ns >= span.began_ns && record.end_ns <= span.until_ns;
    if (!in_span || !fabricshm::makes_sense(record, kAnyKind) || !is_collective(record.kind)) {
        return {TraceVerdict::kImpossible, {}};
    }
    auto found = tracks_.find(record.group_id);
    if (found == tracks_.end()) {
        if (tracks_.size() >= kMaxTracks) return {TraceVerdict::kNoTrack, {}};
        found = tracks_.emplace(record.group_id, TraceTrack{}).first;
    } else if (!follows(record, found->second)) {
        return {TraceVerdict::kImpossible, {}};
    }
    const Place place{TraceVerdict::kFits, found->second};
    found->second = {record.rank, record.world, record.end_ns, record.epoch + 1};
    return place;
}

}  // namespace fabricd

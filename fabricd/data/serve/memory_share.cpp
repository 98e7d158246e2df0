#include "fabricd/data/serve/memory_share.hpp"

#include <algorithm>
#include <chrono>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::ElasticTarget;

namespace {

constexpr auto kReportEvery = std::chrono::milliseconds(100);
// What readers have pinned is let go of in a while: a search of all pins for nothing is not to
// hold up the others.
constexpr auto kTryEvery = std::chrono::milliseconds(10);

}  // namespace

void MemoryShare::tick(const ReaderNotes& notes, Duration waiting, TimePoint now) {
    const auto target = memory_.target();
    is_shrinking_ = target.has_value();
    if (target && now >= next_try_) {
        answer(*target);
        next_try_ = now + kTryEvery;
    }
    if (now < next_report_) return;
    next_report_ = now + kReportEvery;
    const ReaderTotals totals = notes.totals();
    const ChunkCache::Stats& stats = cache_.stats();
    // A wait counts while it lasts: of one that is longer than a window of the daemon's control
    // loop that would see nothing until its end. It has ended a little before its reader notes it,
    // and the sum only rises.
    const auto waiting_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(waiting).count();
    stall_ns_ = std::max(stall_ns_, totals.stall_ns + static_cast<std::uint64_t>(waiting_ns));
    memory_.report({totals.hits, totals.misses, stall_ns_, stats.refetched, stats.near,
                    cache_.used(), notes.readers()});
}

void MemoryShare::answer(const ElasticTarget& target) {
    CacheEnd bytes(cache_);
    const Bytes before = bytes.end();
    if (target.bytes >= before) {
        const Bytes end = std::min(target.bytes, cache_.tables().arena_bytes);
        // Said before it is used.
        memory_.keep(target, end);
        bytes.grow_to(end);
    } else {
        FAULT_POINT("share.before");
        const Bytes end = bytes.shrink_to(std::max(target.bytes, floor_));
        FAULT_POINT("share.emptied");
        // Nothing went where nothing was used: said all the same, so that the daemon has an answer.
        memory_.keep(target, end);
        FAULT_POINT("share.kept");
    }
    if (bytes.end() == before) return;
    resized_();
    fabricshm::log(fabricshm::LogLevel::kInfo, "the cache has %s",
                   fabricshm::format_bytes(bytes.end()).c_str());
}

}  // namespace fabricd

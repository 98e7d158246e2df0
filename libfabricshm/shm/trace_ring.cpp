#include "libfabricshm/shm/trace_ring.hpp"

#include <algorithm>

#include "libfabricshm/base/world_max.hpp"
#include "libfabricshm/shm/wait_record.hpp"

namespace fabricshm {

namespace {

// A writer is done within some 15 ns. One that was stopped in the middle, by the scheduler or by a
// signal, may take milliseconds: for that no operation waits.
constexpr int kTraceWriterTries = 32;

TraceRing& ring_of(std::byte* file) noexcept {
    return *reinterpret_cast<TraceRing*>(file);
}

const TraceRing& ring_of(const std::byte* file) noexcept {
    return *reinterpret_cast<const TraceRing*>(file);
}

// Makes the head odd: this thread is the writer. False when another one is for too long.
bool take_head(SharedWord& head, std::uint64_t& count) noexcept {
    for (int i = 0; i < kTraceWriterTries; ++i) {
        std::uint64_t seen = head.load(std::memory_order_relaxed);
        if (seen % 2 != 0) continue;
        // Acquire: what the last writer stored into the slots is before what this one stores.
        if (head.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
            count = seen / 2;
            return true;
        }
    }
    return false;
}

}  // namespace

const char* name_of(TraceWay way) noexcept {
    constexpr const char* kNames[kTraceWays] = {"none", "flat", "direct", "ring", "staged",
                                                "host", "tiny", "slots",  "tree"};
    const auto index = static_cast<int>(way);
    return kNames[index < kTraceWays ? index : 0];
}

void format_trace(std::byte* file) noexcept {
    // Not constructed: the file is zeros already.
    ring_of(file).version = kTraceVersion;
    ring_of(file).magic = kTraceMagic;
}

Result<void> check_trace(const std::byte* file) noexcept {
    if (ring_of(file).magic != kTraceMagic) return Error{Errc::kCorrupt, 0, "trace"};
    if (ring_of(file).version != kTraceVersion) return Error{Errc::kVersion, 0, "trace"};
    return {};
}

void write_trace(std::byte* file, const TraceRecord& record) noexcept {
    TraceRing& ring = ring_of(file);
    std::uint64_t number = 0;
    if (!take_head(ring.head, number)) {
        // Relaxed: a count that guards nothing.
        ring.lost.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    TraceSlot& slot = ring.slots[number % kTraceRecords];
    // Relaxed: seqlock_store() stores each word with release, so this odd number is there before
    // any of them is, and a reader that loads a new word and then the sequence sees that the record
    // it knew is gone.
    slot.sequence.store(2 * number + 1, std::memory_order_relaxed);
    seqlock_store(slot.record, &record, kTraceWords);
    // Release: all words are there before the even number is.
    slot.sequence.store(2 * number + 2, std::memory_order_release);
    // Release: a reader that sees the new head sees the record; the next writer acquires it.
    ring.head.store(2 * number + 2, std::memory_order_release);
}

void TraceReader::read(std::vector<TraceRecord>& records) {
    constexpr int kAnyKind = 256;  // which kinds there are is for the layers above
    const TraceRing& ring = ring_of(file_);
    // More between two reads than any session does: the ring is no honest one.
    constexpr std::uint64_t kMaxAtOnce = std::uint64_t{1} << 32;
    const std::uint64_t not_written = ring.lost.load(std::memory_order_relaxed);
    if (not_written <= kMaxAtOnce) not_written_ = not_written;
    // Acquire, against the release of the writer.
    const std::uint64_t end = ring.head.load(std::memory_order_acquire) / 2;
    if (end < next_ || end - next_ > kMaxAtOnce) {
        ++senseless_;
        next_ = end;
        return;
    }
    if (end - next_ > kTraceRecords) {
        lost_ = std::min(lost_ + end - next_ - kTraceRecords, kBelievedCount);
        next_ = end - kTraceRecords;
    }
    for (; next_ != end; ++next_) {
        const TraceSlot& slot = ring.slots[next_ % kTraceRecords];
        TraceRecord record;
        // One try: the record was there before the head was. Another number: it is overwritten, now
        // or since; see write_trace() for why the check proves that the words belong together.
        const std::uint64_t peeked = seqlock_peek(slot.sequence);
        seqlock_load(slot.record, &record, kTraceWords);
        if (peeked != 2 * next_ + 2 || !seqlock_check(slot.sequence, peeked)) {
            lost_ = std::min(lost_ + 1, kBelievedCount);
        } else if (!makes_sense(record, kAnyKind)) {
            ++senseless_;
        } else {
            records.push_back(record);
        }
    }
}

bool makes_sense(const TraceRecord& record, int kinds) noexcept {
    return record.group_id != 0 && record.kind < kinds &&
           static_cast<int>(record.way) < kTraceWays && record.world >= 1 &&
           record.world <= kWorldMax && record.rank < record.world &&
           record.bytes <= kBelievedCount && record.epoch <= kBelievedCount &&
           record.begin_ns >= 0 && record.begin_ns <= record.arrive_ns &&
           record.arrive_ns <= record.end_ns && record.end_ns <= kBelievedNs;
}

}  // namespace fabricshm

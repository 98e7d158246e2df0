#include "fabricd/data/blocks/leaving_order.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

bool any(S3Fifo::BlockId) {
    return true;
}

}  // namespace

void LeavingOrder::add(std::uint64_t line, Bytes bytes, ChunkKind kind) {
    Entry& entry = entries_[line];
    FABRIC_DCHECK(entry.kind == ChunkKind::kNone && kind != ChunkKind::kNone);
    entry = {kind, bytes, ++last_turn_};
    std::vector<S3Fifo::BlockId> none;
    if (kind == ChunkKind::kTried) tried_.add(line, bytes, any, none);
    if (kind == ChunkKind::kPassing) passing_[entry.turn] = line;
    if (kind == ChunkKind::kKept) kept_[entry.turn] = line;
}

void LeavingOrder::remove(std::uint64_t line) {
    Entry& entry = entries_[line];
    tried_.remove(line);
    for (Queue* queue : {&passing_, &passed_, &kept_}) queue->erase(entry.turn);
    entry = {};
}

void LeavingOrder::touch(std::uint64_t line) {
    const Entry& entry = entries_[line];
    tried_.touch(line);
    if (passing_.erase(entry.turn) != 0) passed_[entry.turn] = line;
}

void LeavingOrder::stays(std::uint64_t line) {
    const Entry& entry = entries_[line];
    std::vector<S3Fifo::BlockId> none;
    const bool was_taken = entry.kind == ChunkKind::kTried && !tried_.has(line);
    if (was_taken) tried_.add(line, entry.bytes, any, none);
}

void LeavingOrder::take(const Queue& from, const std::vector<Entry>& entries, Bytes wanted,
                        Bytes& found, std::vector<std::uint64_t>& lines) {
    for (const auto& [turn, line] : from) {
        if (found >= wanted) return;
        lines.push_back(line);
        found += entries[line].bytes;
    }
}

std::vector<std::uint64_t> LeavingOrder::next(Bytes bytes, Bytes wanted) {
    std::vector<std::uint64_t> lines;
    Bytes found = 0;
    take(passed_, entries_, bytes, found, lines);
    if (found < bytes && tried_.used() > 0) {
        // It evicts down to a size: that which leaves as much as is needed.
        std::vector<S3Fifo::BlockId> evicted;
        (void)tried_.resize(tried_.used() - std::min(bytes - found, tried_.used()), any, evicted);
        (void)tried_.resize(kNoLimit, any, evicted);
        for (const auto line : evicted) found += entries_[line].bytes;
        lines.insert(lines.end(), evicted.begin(), evicted.end());
    }
    take(kept_, entries_, wanted, found, lines);
    take(passing_, entries_, wanted, found, lines);
    return lines;
}

}  // namespace fabricd

#include "fabricd/data/serve/reader_notes.hpp"

#include <algorithm>

#include "libfabricshm/shm/data_layout.hpp"

namespace fabricd {

using namespace fabricshm;

// Counters only rise; one that fell is rubbish, and counts from there.
void ReaderNotes::add(Seen& seen, NotesSource::Notes notes) {
    const auto take = [&](std::size_t word, std::uint64_t ReaderTotals::*field) {
        // Relaxed: a number for people, that orders nothing.
        const std::uint64_t now = notes[word].load(std::memory_order_relaxed);
        const std::uint64_t before = seen.totals.*field;
        if (now > before) totals_.*field += now - before;
        seen.totals.*field = now;
    };
    take(kDataNoteHits, &ReaderTotals::hits);
    take(kDataNoteMisses, &ReaderTotals::misses);
    take(kDataNoteStallNs, &ReaderTotals::stall_ns);
    take(kDataNoteBytesRead, &ReaderTotals::bytes);
    take(kDataNoteCopies, &ReaderTotals::copies);
}

void ReaderNotes::read(const std::function<void(std::uint64_t)>& viewed) {
    for (auto& [reader, seen] : seen_) seen.is_there = false;
    source_.each([&](std::uint64_t reader, NotesSource::Notes notes) {
        if (notes.size() < kDataNoteRing + kDataNoteRingWords) return;
        Seen& seen = seen_[reader];
        seen.is_there = true;
        add(seen, notes);
        // Acquire: the entries before the position that it reads.
        const std::uint64_t position = notes[kDataNotePosition].load(std::memory_order_acquire);
        std::uint64_t from = seen.position;
        if (position - from > kDataNoteRingWords) from = position - kDataNoteRingWords;
        for (; from != position; ++from) {
            const std::uint64_t entry =
                notes[kDataNoteRing + from % kDataNoteRingWords].load(std::memory_order_relaxed);
            if (entry != 0) viewed(entry - 1);
        }
        seen.position = position;
    });
    std::erase_if(seen_, [](const auto& one) { return !one.second.is_there; });
}

}  // namespace fabricd

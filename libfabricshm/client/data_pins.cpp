#include "libfabricshm/client/data_pins.hpp"

#include <bit>

#include "libfabricshm/base/check.hpp"

namespace fabricshm {

namespace {

constexpr std::uint64_t kAll = ~std::uint64_t{0};

// Threads are numbered as they come; where a thread begins its search.
std::size_t place_of_thread() noexcept {
    static std::atomic<std::size_t> next{0};
    thread_local const std::size_t place = next.fetch_add(1, std::memory_order_relaxed);
    return place;
}

}  // namespace

std::optional<std::size_t> DataPins::claim() noexcept {
    constexpr std::size_t kViewWords = kViews / 64;
    const std::size_t first = place_of_thread() % kViewWords;
    for (std::size_t i = 0; i < kViewWords; ++i) {
        const std::size_t word = first + i < kViewWords ? first + i : first + i - kViewWords;
        if (const auto slot = claim_in(word, kAll)) return slot;
    }
    return std::nullopt;
}

std::optional<std::size_t> DataPins::claim_kept() noexcept {
    return claim_in(kViews / 64, (std::uint64_t{1} << (kPinSlots - kViews)) - 1);
}

std::optional<std::size_t> DataPins::claim_in(std::size_t word, std::uint64_t allowed) noexcept {
    std::atomic<std::uint64_t>& used = words_[word].used;
    std::uint64_t free = ~used.load(std::memory_order_relaxed) & allowed;
    while (free != 0) {
        const std::uint64_t bit = free & (~free + 1);
        // Sequentially consistent: the claim comes before the look at which mapping is the current
        // one, see DataPage::retire(). It also has what the slot's last holder did before it.
        const std::uint64_t before = used.fetch_or(bit, std::memory_order_seq_cst);
        if ((before & bit) == 0) return word * 64 + static_cast<std::size_t>(std::countr_zero(bit));
        free = ~before & allowed;
    }
    return std::nullopt;
}

void DataPins::give_back(std::size_t slot) noexcept {
    FABRIC_CHECK(slot < kPinSlots);
    // Release: the next holder, and the thread that unmaps, come after what was done with it.
    words_[slot / 64].used.fetch_and(~(std::uint64_t{1} << (slot % 64)), std::memory_order_seq_cst);
}

std::size_t DataPins::claimed() const noexcept {
    std::size_t count = 0;
    for (const Word& word : words_) {
        count += static_cast<std::size_t>(std::popcount(word.used.load(std::memory_order_seq_cst)));
    }
    return count;
}

void DataPins::count_hit(std::size_t slot, std::uint64_t line, Bytes bytes) noexcept {
    Word& word = words_[slot / 64];
    // Relaxed, all: numbers for statistics, and lines as hints. Threads that share a word because
    // there are more of them than words may overwrite each other's line.
    word.bytes.fetch_add(bytes, std::memory_order_relaxed);
    const std::uint64_t before = word.hits.fetch_add(1, std::memory_order_relaxed);
    word.recent[before % kBatch].store(line + 1, std::memory_order_relaxed);
    if (before % kBatch == kBatch - 1) publish(word);
}

void DataPins::publish(Word& word) noexcept {
    add(kDataNoteHits, kBatch);
    add(kDataNoteBytesRead, word.bytes.exchange(0, std::memory_order_relaxed));
    const std::uint64_t position =
        page_.notes[kDataNotePosition].fetch_add(kBatch, std::memory_order_relaxed);
    for (std::size_t i = 0; i < kBatch; ++i) {
        note_line(position + i, word.recent[i].load(std::memory_order_relaxed));
    }
}

void DataPins::count_fetched(std::uint64_t line, Bytes bytes) noexcept {
    add(kDataNoteBytesRead, bytes);
    note_line(page_.notes[kDataNotePosition].fetch_add(1, std::memory_order_relaxed), line + 1);
}

void DataPins::count_miss(Duration stalled) noexcept {
    add(kDataNoteMisses, 1);
    add(kDataNoteStallNs, static_cast<std::uint64_t>(std::chrono::nanoseconds(stalled).count()));
}

DataCounts DataPins::counts() const noexcept {
    const auto note = [&](std::size_t index) {
        return page_.notes[index].load(std::memory_order_relaxed);
    };
    DataCounts counts{0, note(kDataNoteMisses), note(kDataNoteStallNs), note(kDataNoteBytesRead),
                      note(kDataNoteCopies)};
    for (const Word& word : words_) {
        counts.hits += word.hits.load(std::memory_order_relaxed);
        counts.bytes += word.bytes.load(std::memory_order_relaxed);
    }
    return counts;
}

}  // namespace fabricshm

// DataPins: the slots of this process's pin page, handed out to its threads, and what it counts
// there for the service.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/pin_page.hpp"

namespace fabricshm {

/// What a reader counts, as it adds up at one moment.
struct DataCounts {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t stall_ns = 0;
    std::uint64_t bytes = 0;
    std::uint64_t copies = 0;
};

/// Which slots are in use. Any thread; never waits. Threads begin their search in words of their
/// own, so that they share no line of memory while there are fewer than kWords of them.
class DataPins {
  public:
    /// Slots that views may take; those behind them are for reads, when no other is left.
    static constexpr std::size_t kViews = 3968;
    static_assert(kViews % 64 == 0 && kPinSlots - kViews == 32);

    /// `page` is this process's alone and outlives this object.
    explicit DataPins(PinPage& page) noexcept : page_(page) {}
    DataPins(const DataPins&) = delete;
    DataPins& operator=(const DataPins&) = delete;

    /// A slot for a view; none: all are in use. Some 10 ns.
    std::optional<std::size_t> claim() noexcept;
    /// One of those that are kept for reads.
    std::optional<std::size_t> claim_kept() noexcept;
    /// Gives a slot back that is not pinned any more.
    void give_back(std::size_t slot) noexcept;

    /// How many are in use.
    std::size_t claimed() const noexcept;

    PinPage& page() noexcept { return page_; }

    /// A chunk was there when it was wanted. The service learns of it a few hits later.
    void count_hit(std::size_t slot, std::uint64_t line, Bytes bytes) noexcept;
    /// It is there now, after a miss.
    void count_fetched(std::uint64_t line, Bytes bytes) noexcept;
    void count_miss(Duration stalled) noexcept;
    void count_copy() noexcept { add(kDataNoteCopies, 1); }
    DataCounts counts() const noexcept;

  private:
    // Hits are counted where the slot is, and published once in so many: the notes are one line for
    // all threads.
    static constexpr std::size_t kBatch = 8;
    static constexpr std::size_t kWords = kPinSlots / 64 + 1;

    struct alignas(kCachePair) Word {
        std::atomic<std::uint64_t> used{0};  // a bit for each slot
        std::atomic<std::uint64_t> hits{0};
        std::atomic<std::uint64_t> bytes{0};  // of hits that were not published yet
        std::array<std::atomic<std::uint64_t>, kBatch> recent{};
    };

    std::optional<std::size_t> claim_in(std::size_t word, std::uint64_t allowed) noexcept;
    void publish(Word& word) noexcept;
    void note_line(std::uint64_t position, std::uint64_t noted) noexcept {
        page_.notes[kDataNoteRing + position % kDataNoteRingWords].store(noted,
                                                                         std::memory_order_relaxed);
    }
    void add(std::size_t note, std::uint64_t much) noexcept {
        // Relaxed: a count orders nothing.
        page_.notes[note].fetch_add(much, std::memory_order_relaxed);
    }

    PinPage& page_;
    std::array<Word, kWords> words_;
};

}  // namespace fabricshm

// Pin pages: which bytes of a published arena its readers use right now. docs/shm_layout.md,
// docs/pool.md.
//
//   reader:  slot := line + 1 | word again: unchanged? it is pinned : slot := 0
//   maker:   word := leaving  | pages, slots: is it there? word := as before : the bytes are free
//
// One page for each reader of each published arena: a memory file that the reader writes, and the
// arena's maker reads, to which every word of it is input. A line is what the maker gives bytes to,
// by a number; its word says in which state it is and which generation of bytes is in it, so that
// it never has the same value for other bytes.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/elastic_words.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kPinMagic = 0x31534e4950424146;  // "FABPINS1"
inline constexpr std::size_t kPinSlots = 4000;
inline constexpr std::size_t kPinNotesBytes = 4032;

struct alignas(kCachePair) PinPage {
    std::atomic<std::uint64_t> magic;
    // Slots from this one on were never used. Only rises, so a scan of a reader that holds few pins
    // is short: take the lowest slot that is free.
    std::atomic<std::uint64_t> high;
    char pad_[48];
    // The reader's own, for the arena's maker to read; what they mean is the application's.
    std::atomic<std::uint64_t> notes[kPinNotesBytes / 8];
    std::atomic<std::uint64_t> slots[kPinSlots];  // 0: free, else line + 1
};
static_assert(offsetof(PinPage, notes) == kCacheLine);
static_assert(offsetof(PinPage, slots) == 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// The start of a published arena, written by the daemon but for the maker's elastic words; the
/// application's bytes come behind its page. The numbers of pages rise, also over restarts of the
/// daemon, and a page's is here before its reader gets it: a maker that knows all pages up to
/// `newest` knows all that can hold a pin.
struct PublishedHeader {
    std::atomic<std::uint64_t> magic;
    std::atomic<std::uint64_t> newest;   // the number of the newest page; 0: none yet
    std::atomic<std::uint64_t> changes;  // rises when a page is over
    std::atomic<std::uint64_t> makers;   // that it ever had, the one of now counted
    char pad_[32];
    ElasticWords elastic;
};
inline constexpr std::uint64_t kPublishedMagic = 0x314c425550424146;  // "FABPUBL1"
inline constexpr Bytes kPublishedHeaderBytes = 4096;
static_assert(offsetof(PublishedHeader, elastic) == 64 && sizeof(PublishedHeader) == 256);

/// What the memory file of a page takes.
inline constexpr Bytes kPinFileBytes = 36864;
static_assert(sizeof(PinPage) == 36096 && sizeof(PinPage) <= kPinFileBytes);

/// Makes an empty page of zeros. For the daemon, before it hands the page out.
void format_pin_page(PinPage& page) noexcept;

/// kCorrupt unless the bytes are a page. For both sides, once.
Result<void> check_pin_page(const PinPage& page) noexcept;

/// Pins `line` in `slot`, which is free and the caller's alone, if `word` still is `seen`. True:
/// the bytes that `seen` spoke of stay as they are until unpin(). False: the word has changed,
/// nothing is pinned. `seen` is a state in which the bytes may be read. Some 5 ns; never waits.
bool pin(PinPage& page, std::size_t slot, std::uint64_t line,
         const std::atomic<std::uint64_t>& word, std::uint64_t seen) noexcept;

/// The slot is free again; the bytes that it pinned are read no more.
inline void unpin(PinPage& page, std::size_t slot) noexcept {
    // Release: the maker that sees the slot empty, or with another line, gives the bytes away only
    // after all loads from them.
    page.slots[slot].store(0, std::memory_order_release);
}

/// A maker's search for pins among all pages of its arena.
///
///   store the words of the lines that shall leave | PinScan scan | learn of all pages |
///   scan.page(...) of each | scan.pinned(i): lines[i] stays
///
/// A line that no page had may be given to other bytes. Every page whose reader may have been
/// answered before the scan began has to be among them.
class PinScan {
  public:
    /// `lines` are ascending; `pinned` is as long, and is overwritten. Both are borrowed.
    PinScan(std::span<const std::uint64_t> lines, std::span<std::uint8_t> pinned) noexcept;

    /// Searches the slots of one page: some 50 ns when few were ever used, 1 us when all were, 18
    /// us when all hold pins. What a hostile reader wrote can pin lines, which it may do anyway,
    /// and nothing else.
    void page(const PinPage& page) noexcept;

    bool pinned(std::size_t index) const noexcept { return pinned_[index] != 0; }
    /// How many of the lines are pinned.
    std::size_t count() const noexcept { return count_; }
    /// All are: the other pages need not be searched.
    bool all() const noexcept { return count_ == lines_.size(); }

  private:
    void mark(std::uint64_t line) noexcept;

    std::span<const std::uint64_t> lines_;
    std::span<std::uint8_t> pinned_;
    std::size_t count_ = 0;
};

}  // namespace fabricshm

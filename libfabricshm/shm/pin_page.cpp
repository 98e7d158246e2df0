#include "libfabricshm/shm/pin_page.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"

namespace fabricshm {

void format_pin_page(PinPage& page) noexcept {
    // Release: a mapping that sees the magic sees zeros behind it.
    page.magic.store(kPinMagic, std::memory_order_release);
}

Result<void> check_pin_page(const PinPage& page) noexcept {
    if (page.magic.load(std::memory_order_acquire) == kPinMagic) return {};
    return Error{Errc::kCorrupt, 0, "pin page"};
}

bool pin(PinPage& page, std::size_t slot, std::uint64_t line,
         const std::atomic<std::uint64_t>& word, std::uint64_t seen) noexcept {
    FABRIC_CHECK(slot < kPinSlots);
    // Sequentially consistent, and before the slot is filled: a scan that comes after the store of
    // the slot finds a `high` that covers it, whichever thread of the reader raised it.
    std::uint64_t high = page.high.load(std::memory_order_seq_cst);
    while (high <= slot &&
           !page.high.compare_exchange_weak(high, slot + 1, std::memory_order_seq_cst)) {
    }
    // Sequentially consistent, both: the maker stores the word and then loads the slot, with a
    // fence between. In the one order of all four either its load comes after this store and finds
    // the line, or its store comes before this load, which finds the word changed. (An exchange and
    // a load on x86: the fence that this needs costs as much by any name.) As an acquire the load
    // also shows the bytes that the maker stored before it published the word.
    page.slots[slot].store(line + 1, std::memory_order_seq_cst);
    if (word.load(std::memory_order_seq_cst) == seen) return true;
    unpin(page, slot);
    return false;
}

PinScan::PinScan(std::span<const std::uint64_t> lines, std::span<std::uint8_t> pinned) noexcept
    : lines_(lines), pinned_(pinned) {
    FABRIC_CHECK(lines.size() == pinned.size());
    std::fill(pinned.begin(), pinned.end(), std::uint8_t{0});
    // The maker's half of the argument in pin(): its stores to the words come before its loads of
    // counts, pages and slots, for every reader.
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

void PinScan::page(const PinPage& page) noexcept {
    // Input: a reader may write any number. Sequentially consistent loads, which cost nothing on
    // x86, so that no compiler or processor takes them before the fence; as acquires they keep what
    // the maker does with the bytes behind the last loads of their reader, see unpin().
    const std::uint64_t high = page.high.load(std::memory_order_seq_cst);
    const std::size_t end = std::min<std::uint64_t>(high, kPinSlots);
    for (std::size_t slot = 0; slot < end; ++slot) {
        const std::uint64_t held = page.slots[slot].load(std::memory_order_seq_cst);
        if (held != 0) mark(held - 1);
    }
}

void PinScan::mark(std::uint64_t line) noexcept {
    const auto place = std::lower_bound(lines_.begin(), lines_.end(), line);
    if (place == lines_.end() || *place != line) return;
    std::uint8_t& mark = pinned_[static_cast<std::size_t>(place - lines_.begin())];
    count_ += mark == 0 ? 1 : 0;
    mark = 1;
}

}  // namespace fabricshm

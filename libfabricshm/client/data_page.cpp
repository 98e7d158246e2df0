#include "libfabricshm/client/data_page.hpp"

#include <utility>

#include "libfabricshm/base/check.hpp"

namespace fabricshm {

namespace {

// How often a line is tried again that left and came back meanwhile, before the service is asked.
constexpr int kTries = 4;

}  // namespace

DataPage::DataPage(DataArena arena, std::uint32_t number)
    : arena_(std::move(arena)),
      number_(number),
      pins_(*arena_.pins),
      entries_(std::make_unique<std::array<Entry, kPinSlots>>()) {
    FABRIC_CHECK(number >= 1 && number <= kMaxNumber);
}

DataFinding DataPage::pin_in(std::size_t slot, const DataTables& tables, const DataWant& want,
                             DataHold& hold) noexcept {
    // Of a listing, which is input, and of tables that may be others than the listing's.
    if (want.line >= tables.lines) return DataFinding::kCorrupt;
    const DataLine& line = data_line(arena_.base, tables, want.line);
    for (int i = 0; i < kTries; ++i) {
        // Acquire is in pin(): what is read here only decides whether it is worth while.
        const std::uint64_t word = line.word.load(std::memory_order_relaxed);
        if (data_state(word) == DataLineState::kGone) return DataFinding::kChanged;
        if (data_state(word) != DataLineState::kReady) return DataFinding::kMissing;
        if (!fabricshm::pin(pins_.page(), slot, want.line, line.word, word)) continue;
        const DataFinding finding = look_into(line, tables, want, hold);
        if (finding != DataFinding::kPinned) {
            unpin(pins_.page(), slot);
        } else if (want.is_fetched) {
            pins_.count_fetched(want.line, want.used);
        } else {
            pins_.count_hit(slot, want.line, want.used);
        }
        return finding;
    }
    return DataFinding::kMissing;
}

// Between the pin and the use: the line's fields stay as they are now.
DataFinding DataPage::look_into(const DataLine& line, const DataTables& tables,
                                const DataWant& want, DataHold& hold) const noexcept {
    // A service that began again made the header before it made any line ready, and a reader that
    // sees the line, by the acquire in pin(), sees the header. Numbers of files may be used again
    // then.
    const auto& header = *reinterpret_cast<const DataHeader*>(arena_.base);
    const bool same_tables =
        header.magic.load(std::memory_order_relaxed) == kDataMagic &&
        __atomic_load_n(&header.generation, __ATOMIC_RELAXED) == tables.generation;
    if (!same_tables) return DataFinding::kStale;
    const auto extent = read_data_line(line, tables);
    if (!extent) return DataFinding::kCorrupt;
    if (extent->file != want.file) return DataFinding::kChanged;
    if (extent->chunk != want.chunk || extent->bytes != want.bytes) return DataFinding::kCorrupt;
    hold.bytes = arena_.base + extent->offset;
    return DataFinding::kPinned;
}

std::uint64_t DataPage::enter(std::size_t slot, const void* owner) noexcept {
    Entry& entry = (*entries_)[slot];
    entry.turn += 1;
    const std::uint64_t handle =
        entry.turn << kTurnShift | static_cast<std::uint64_t>(number_) << kSlotBits | slot;
    entry.owner.store(owner, std::memory_order_relaxed);
    // Release: a thread that finds the handle finds its owner.
    entry.handle.store(handle, std::memory_order_release);
    return handle;
}

bool DataPage::release(std::uint64_t handle) noexcept {
    const std::size_t slot = handle & ((std::uint64_t{1} << kSlotBits) - 1);
    if (handle == 0 || slot >= kPinSlots || number_of(handle) != number_) return false;
    Entry& entry = (*entries_)[slot];
    std::uint64_t held = handle;
    // One of two threads that release the same view ends it. Acquire: the entry is as enter() left
    // it.
    if (!entry.handle.compare_exchange_strong(held, 0, std::memory_order_acq_rel)) return false;
    unpin(pins_.page(), slot);
    pins_.give_back(slot);
    return true;
}

std::size_t DataPage::held_by(const void* owner) const noexcept {
    std::size_t count = 0;
    for (const Entry& entry : *entries_) {
        const bool is_held = entry.handle.load(std::memory_order_acquire) != 0;
        if (is_held && entry.owner.load(std::memory_order_relaxed) == owner) ++count;
    }
    return count;
}

bool DataPage::retire() noexcept {
    // Sequentially consistent, and so are claims and is_current(): either a thread that claimed a
    // slot sees that the page is not the current one, or the slot is seen here. The same between
    // this store and a release that gives back the last slot: one of both finds the other.
    retired_.store(true, std::memory_order_seq_cst);
    if (arena_.owner == nullptr) return true;
    if (pins_.claimed() != 0) return false;
    last_counts_ = pins_.counts();
    arena_ = DataArena{};
    return true;
}

}  // namespace fabricshm

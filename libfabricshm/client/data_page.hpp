// DataPage: the service's arena as this process has it mapped, with the pin page of its own, and
// the views that are held in it.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/data_pins.hpp"
#include "libfabricshm/shm/data_layout.hpp"

namespace fabricshm {

/// A published arena that was mapped for reading.
struct DataArena {
    const std::byte* base = nullptr;
    Bytes bytes = 0;
    PinPage* pins = nullptr;
    std::shared_ptr<void> owner;      // of both
    std::function<bool()> is_held{};  // false: fabricd has given the page up; empty: never
};

/// Which line, and what it has to hold.
struct DataWant {
    std::uint64_t line = 0;
    std::uint64_t file = 0;
    std::uint32_t chunk = 0;
    std::uint32_t bytes = 0;  // the length of that chunk
    std::uint32_t used = 0;   // of them, for the counters
    bool is_fetched = false;  // it was not there, and asked for: no hit
};

enum class DataFinding : std::uint8_t {
    kPinned,
    kMissing,  // not in the pool now
    kChanged,  // that version of the file is no more
    kStale,    // the tables are others by now
    kFull,     // no slot is free
    kCorrupt,  // the line does not make sense
};

/// A chunk that was pinned.
struct DataHold {
    const std::byte* bytes = nullptr;
    std::uint64_t handle = 0;
};

/// Any thread. Objects stay until the handle of the process goes, so that a thread may hold the
/// address of one that is not the current one any more; their mappings go earlier.
class DataPage {
  public:
    /// `number`: 1 to kMaxNumber, apart from other pages of this process.
    DataPage(DataArena arena, std::uint32_t number);

    static constexpr std::uint32_t kMaxNumber = 0xffff;

    /// Pins a line for `owner`. `kept`: in a slot that is kept for reads. `is_current` is asked
    /// once a slot is claimed: from then on the mapping stays. No system call, no allocation.
    template <typename IsCurrent>
    DataFinding pin(const DataTables& tables, const DataWant& want, const void* owner, bool kept,
                    IsCurrent&& is_current, DataHold& hold) noexcept {
        const auto slot = kept ? pins_.claim_kept() : pins_.claim();
        if (!slot) return DataFinding::kFull;
        if (!is_current()) {
            pins_.give_back(*slot);
            return DataFinding::kStale;
        }
        const DataFinding finding = pin_in(*slot, tables, want, hold);
        if (finding != DataFinding::kPinned) {
            pins_.give_back(*slot);
            return finding;
        }
        hold.handle = enter(*slot, owner);
        return finding;
    }

    /// Ends what `handle` says, when it is held. False: it is not.
    bool release(std::uint64_t handle) noexcept;

    /// How many views `owner` holds.
    std::size_t held_by(const void* owner) const noexcept;

    /// No thread pins anything here from now on. True: the mapping is gone; false: it is in use.
    /// By one thread at a time, after is_current() has become false.
    bool retire() noexcept;
    /// Whether retire() was called. For a thread that has just released something here.
    bool is_retired() const noexcept { return retired_.load(std::memory_order_seq_cst); }

    /// False: fabricd lost the session that has the page. What is pinned stays so, but a page that
    /// fabricd knows has to take its place. Before retire().
    bool is_held() const { return !arena_.is_held || arena_.is_held(); }

    /// The arena's header as it is now. Before retire().
    Result<DataTables> read_tables() const { return read_data_header(arena_.base, arena_.bytes); }

    std::uint32_t number() const noexcept { return number_; }
    DataPins& pins() noexcept { return pins_; }
    /// What was counted here; what there was when the mapping went.
    DataCounts counts() const noexcept { return arena_.owner ? pins_.counts() : last_counts_; }

    static std::uint32_t number_of(std::uint64_t handle) noexcept {
        return static_cast<std::uint32_t>(handle >> kSlotBits) & kMaxNumber;
    }

  private:
    // A handle: how often the slot was given out | number of the page | slot.
    static constexpr unsigned kSlotBits = 12;
    static constexpr unsigned kTurnShift = 28;
    static_assert(kPinSlots <= std::size_t{1} << kSlotBits);

    struct Entry {
        std::atomic<std::uint64_t> handle{0};  // 0: not held
        std::atomic<const void*> owner{nullptr};
        std::uint64_t turn = 0;  // of the one that holds the slot alone
    };

    DataFinding pin_in(std::size_t slot, const DataTables& tables, const DataWant& want,
                       DataHold& hold) noexcept;
    DataFinding look_into(const DataLine& line, const DataTables& tables, const DataWant& want,
                          DataHold& hold) const noexcept;
    std::uint64_t enter(std::size_t slot, const void* owner) noexcept;

    DataArena arena_;
    const std::uint32_t number_;
    DataPins pins_;
    DataCounts last_counts_;
    std::atomic<bool> retired_{false};
    std::unique_ptr<std::array<Entry, kPinSlots>> entries_;
};

}  // namespace fabricshm

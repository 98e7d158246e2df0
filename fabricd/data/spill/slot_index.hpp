// The layout of a slot of the spill: chunks from its beginning on, and the index of them behind.
// docs/data.md.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fabricd/data/catalogue/catalogue.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// A chunk of a file is at most this large, and so is a slot.
inline constexpr Bytes kSlotBytes = 4 * fabricshm::kMiB;

/// A chunk in a slot.
struct SlotEntry {
    std::uint64_t file = 0;    // CataloguedFile::id
    std::uint32_t number = 0;  // of the chunk in its file
    std::uint32_t offset = 0;  // in the slot
    std::uint32_t bytes = 0;
    std::uint32_t checksum = 0;  // CRC-32C of these

    bool operator==(const SlotEntry&) const = default;
};
static_assert(sizeof(SlotEntry) == 24);

/// What the index says besides its entries: which slot it is of. It is refused elsewhere.
struct SlotIndexHead {
    CatalogueIdentity catalogue{};
    std::uint64_t sequence = 0;

    bool operator==(const SlotIndexHead&) const = default;
};

/// Where a chunk goes that comes behind `end`: as near as may be without touching more blocks of
/// the disk than its bytes need.
Bytes place_behind(Bytes end, Bytes bytes) noexcept;

/// Sixteen indexes are read at a time after a restart, into the memory of a slot.
inline constexpr Bytes kMaxIndexBytes = kSlotBytes / 16;
Bytes index_bytes(std::size_t entries) noexcept;
/// Where the index goes: at a block's beginning.
Bytes index_place(Bytes end) noexcept;
/// Whether a slot has room for the chunks up to `end` and an index of `entries`.
bool fits_slot(Bytes end, std::size_t entries) noexcept;

/// Writes index_bytes() to `into`.
void write_index(const SlotIndexHead& head, std::span<const SlotEntry> entries, std::byte* into);

/// Of bytes that were read from the disk. kCorrupt: not the index with that checksum and head, or
/// an entry that is none.
Result<std::vector<SlotEntry>> read_index(std::span<const std::byte> bytes, std::uint32_t checksum,
                                          const SlotIndexHead& head);

}  // namespace fabricd

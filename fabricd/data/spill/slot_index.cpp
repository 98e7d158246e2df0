#include "fabricd/data/spill/slot_index.hpp"

#include <cstring>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/disk_writer.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::kDiskBlock;

namespace {

constexpr std::uint64_t kMagic = 0x31544f4c53424146;  // "FABSLOT1"

struct RawHead {
    std::uint64_t magic;
    std::byte catalogue[16];
    std::uint64_t sequence;
    std::uint64_t entries;
};
static_assert(sizeof(RawHead) == 40);

Error corrupt(const char* what) {
    return explain({Errc::kCorrupt, 0, "slot index"}, "%s", what);
}

constexpr Bytes blocks_of(Bytes bytes) {
    return (bytes + kDiskBlock - 1) / kDiskBlock;
}

bool is_sound(const SlotEntry& entry) {
    return entry.file != 0 && entry.bytes != 0 && entry.bytes <= kSlotBytes &&
           entry.offset <= kSlotBytes - entry.bytes;
}

}  // namespace

Bytes place_behind(Bytes end, Bytes bytes) noexcept {
    const Bytes near = fabricshm::round_up(end, fabricshm::kCacheLine);
    const bool is_cut = blocks_of(near % kDiskBlock + bytes) > blocks_of(bytes);
    return is_cut ? fabricshm::round_up(near, kDiskBlock) : near;
}

Bytes index_bytes(std::size_t entries) noexcept {
    return sizeof(RawHead) + entries * sizeof(SlotEntry);
}

Bytes index_place(Bytes end) noexcept {
    return fabricshm::round_up(end, kDiskBlock);
}

bool fits_slot(Bytes end, std::size_t entries) noexcept {
    const Bytes index = fabricshm::round_up(index_bytes(entries), kDiskBlock);
    return index <= kMaxIndexBytes && index_place(end) + index <= kSlotBytes;
}

void write_index(const SlotIndexHead& head, std::span<const SlotEntry> entries, std::byte* into) {
    RawHead raw{kMagic, {}, head.sequence, entries.size()};
    std::memcpy(raw.catalogue, head.catalogue.data(), sizeof raw.catalogue);
    std::memcpy(into, &raw, sizeof raw);
    if (!entries.empty()) std::memcpy(into + sizeof raw, entries.data(), entries.size_bytes());
}

Result<std::vector<SlotEntry>> read_index(std::span<const std::byte> bytes, std::uint32_t checksum,
                                          const SlotIndexHead& head) {
    RawHead raw{};
    if (bytes.size() < sizeof raw || bytes.size() > kMaxIndexBytes)
        return corrupt("has another size");
    if (fabricshm::crc32c(bytes.data(), bytes.size()) != checksum)
        return corrupt("has another sum");
    std::memcpy(&raw, bytes.data(), sizeof raw);
    SlotIndexHead found{{}, raw.sequence};
    std::memcpy(found.catalogue.data(), raw.catalogue, sizeof raw.catalogue);
    if (raw.magic != kMagic || found != head) return corrupt("is another slot's");
    const std::size_t count = (bytes.size() - sizeof raw) / sizeof(SlotEntry);
    if (raw.entries != count || index_bytes(count) != bytes.size()) return corrupt("is cut");
    std::vector<SlotEntry> entries(count);
    if (count != 0)
        std::memcpy(entries.data(), bytes.data() + sizeof raw, count * sizeof(SlotEntry));
    for (const SlotEntry& entry : entries) {
        if (!is_sound(entry)) return corrupt("has an entry that is none");
    }
    return entries;
}

}  // namespace fabricd

// The catalogue of a DAX pool: which arena is where on the device. Pure: bytes in, bytes out.
//
//   first block of the device                                 second block on
//   | copy 0 (1 MiB) | copy 1 (1 MiB) | unused ... |          | arenas, each whole blocks |
//
// A block is the device's alignment, 2 MiB at least. The copies are written in turn, so that a
// write that was torn (by a crash, or the power) leaves the one before it valid.
//
// A pool of several devices has its catalogue on the first, whose offsets are those of the space
// that is striped over all of them behind their first blocks. The first blocks of the others hold
// labels: catalogues without entries, which say which device of which pool this is.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/stripes.hpp"

namespace fabricshm {

using Uuid = std::array<std::uint8_t, 16>;

/// "01234567-89ab-cdef-0123-456789abcdef", and back; kInvalid for anything else (the hyphens may be
/// missing, as in /etc/machine-id).
std::string format_uuid(const Uuid& uuid);
Result<Uuid> parse_uuid(const std::string& text);

struct DaxEntry {
    std::uint64_t arena_id = 0;
    std::string name;  // 63 bytes are kept
    std::uint32_t uid = 0;
    std::uint64_t offset = 0;  // from the start of the device
    Bytes bytes = 0;
};

struct DaxCatalogue {
    Uuid uuid{};              // of the pool: made when the device is formatted
    Uuid host{};              // /etc/machine-id of the host it belongs to; zero: unknown
    std::uint64_t epoch = 0;  // rises when another host takes the device over
    Bytes device_bytes = 0;   // as they were when the device was formatted; of several, the space's
    Bytes align = 0;
    std::uint64_t sequence = 0;     // rises with every write; the higher valid copy counts
    std::vector<DaxEntry> entries;  // in order of their offsets
    std::uint32_t device = 0;       // of `devices`, from 0: above it, this is a label
    std::uint32_t devices = 1;
    Bytes stripe = 0;  // of several devices

    Stripes stripes() const noexcept { return {devices, stripe, align}; }
};

inline constexpr Bytes kCatalogueCopyBytes = kMiB;
inline constexpr std::size_t kCatalogueEntriesMax = 8128;

/// The bytes of one copy, at most kCatalogueCopyBytes.
std::vector<std::byte> encode_catalogue(const DaxCatalogue& catalogue);

/// Reads one copy from the kCatalogueCopyBytes at `data`. kNotFound: no catalogue begins here.
/// kVersion: a later version's. kCorrupt: the checksum is wrong, or entries leave the device,
/// overlap, repeat an id or are not whole blocks.
Result<DaxCatalogue> decode_catalogue(const std::byte* data);

/// The offset of a free range of `bytes` (whole blocks): the smallest that fits, so that large
/// ranges stay whole. kNoMemory when there is none.
Result<std::uint64_t> find_room(const DaxCatalogue& catalogue, Bytes bytes);

}  // namespace fabricshm

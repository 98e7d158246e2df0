#include "libfabricshm/machine/dax_catalogue.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <unordered_set>

#include "libfabricshm/base/crc32c.hpp"

namespace fabricshm {

namespace {

constexpr std::uint64_t kMagic = 0x3154414358414446;  // "FDAXCAT1" in memory order
constexpr std::uint32_t kVersion = 1;
// Of a pool of several devices: a daemon that knows of one only must not take the first for that.
constexpr std::uint32_t kStripedVersion = 2;
constexpr std::uint32_t kLive = 1;  // the only state so far: a range is entered when it is ready

// As on the device: another layout needs another kVersion.
struct StoredHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t crc;  // of header and entries, with this field zero
    std::uint8_t uuid[16];
    std::uint8_t host[16];
    std::uint64_t device_bytes;
    std::uint64_t align;
    std::uint64_t sequence;
    std::uint64_t entry_count;
    std::uint64_t epoch;
    // Zero in kVersion.
    std::uint64_t stripe;
    std::uint32_t device;
    std::uint32_t devices;
    std::uint8_t reserved[24];
};
static_assert(sizeof(StoredHeader) == 128);

struct StoredEntry {
    std::uint64_t arena_id;
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint32_t uid;
    std::uint32_t state;
    char name[64];  // zero-terminated
    std::uint8_t reserved[32];
};
static_assert(sizeof(StoredEntry) == 128);
static_assert(sizeof(StoredHeader) + kCatalogueEntriesMax * sizeof(StoredEntry) <=
              kCatalogueCopyBytes);

// `header` by value: the checksum is of a header without one.
std::uint32_t checksum(StoredHeader header, const std::byte* entries) {
    header.crc = 0;
    return crc32c(entries, header.entry_count * sizeof(StoredEntry),
                  crc32c(&header, sizeof header));
}

// What find_room() and the daemon count on. In order of offsets, so that one pass sees overlaps.
bool is_sound(const DaxCatalogue& catalogue) {
    if (catalogue.align < 2 * kMiB || (catalogue.align & (catalogue.align - 1)) != 0) return false;
    // A block for the catalogue and one for arenas, or find_room() would count below zero.
    if (catalogue.device_bytes / catalogue.align < 2) return false;
    if (catalogue.devices != 1) {
        const bool striped = catalogue.devices <= Stripes::kFilesMax &&
                             catalogue.device < catalogue.devices && catalogue.stripe != 0 &&
                             catalogue.stripe % catalogue.align == 0;
        if (!striped || (catalogue.device != 0 && !catalogue.entries.empty())) return false;
    }
    std::unordered_set<std::uint64_t> ids;
    std::uint64_t free_from = catalogue.align;  // the first block is the catalogue's own
    for (const auto& entry : catalogue.entries) {
        if (entry.offset < free_from || entry.offset % catalogue.align != 0) return false;
        if (entry.bytes == 0 || entry.bytes % catalogue.align != 0) return false;
        if (entry.offset > catalogue.device_bytes ||
            entry.bytes > catalogue.device_bytes - entry.offset) {
            return false;
        }
        if (!ids.insert(entry.arena_id).second) return false;
        free_from = entry.offset + entry.bytes;
    }
    return true;
}

Result<DaxEntry> decode_entry(const std::byte* data) {
    StoredEntry stored;
    std::memcpy(&stored, data, sizeof stored);
    if (stored.state != kLive) return Error{Errc::kVersion, 0, "read catalogue: state of an entry"};
    stored.name[sizeof stored.name - 1] = '\0';
    return DaxEntry{stored.arena_id, stored.name, stored.uid, stored.offset, stored.bytes};
}

}  // namespace

std::string format_uuid(const Uuid& uuid) {
    std::string text;
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", uuid[i]);
        text += digits;
    }
    return text;
}

Result<Uuid> parse_uuid(const std::string& text) {
    std::string digits;
    std::copy_if(text.begin(), text.end(), std::back_inserter(digits),
                 [](char c) { return c != '-'; });
    const bool all_hex = std::all_of(digits.begin(), digits.end(),
                                     [](unsigned char c) { return std::isxdigit(c) != 0; });
    if (digits.size() != 32 || !all_hex) return Error{Errc::kInvalid, 0, "read UUID"};
    Uuid uuid{};
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        uuid[i] = static_cast<std::uint8_t>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
    }
    return uuid;
}

std::vector<std::byte> encode_catalogue(const DaxCatalogue& catalogue) {
    StoredHeader header{};
    header.magic = kMagic;
    header.version = catalogue.devices == 1 ? kVersion : kStripedVersion;
    std::memcpy(header.uuid, catalogue.uuid.data(), sizeof header.uuid);
    std::memcpy(header.host, catalogue.host.data(), sizeof header.host);
    header.device_bytes = catalogue.device_bytes;
    header.align = catalogue.align;
    header.sequence = catalogue.sequence;
    header.entry_count = catalogue.entries.size();
    header.epoch = catalogue.epoch;
    if (catalogue.devices != 1) {
        header.stripe = catalogue.stripe;
        header.device = catalogue.device;
        header.devices = catalogue.devices;
    }

    // No more entries than there are: a short write has less to tear.
    std::vector<std::byte> bytes(sizeof header + header.entry_count * sizeof(StoredEntry));
    std::byte* at = bytes.data() + sizeof header;
    for (const auto& entry : catalogue.entries) {
        StoredEntry stored{};
        stored.arena_id = entry.arena_id;
        stored.offset = entry.offset;
        stored.bytes = entry.bytes;
        stored.uid = entry.uid;
        stored.state = kLive;
        entry.name.copy(stored.name, sizeof stored.name - 1);
        std::memcpy(at, &stored, sizeof stored);
        at += sizeof stored;
    }
    header.crc = checksum(header, bytes.data() + sizeof header);
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
}

Result<DaxCatalogue> decode_catalogue(const std::byte* data) {
    StoredHeader header;
    std::memcpy(&header, data, sizeof header);
    if (header.magic != kMagic) return Error{Errc::kNotFound, 0, "read catalogue"};
    const bool is_striped = header.version == kStripedVersion;
    if (!is_striped && header.version != kVersion) {
        return Error{Errc::kVersion, 0, "read catalogue"};
    }
    // The count before the checksum, which reads that many entries.
    if (header.entry_count > kCatalogueEntriesMax ||
        header.crc != checksum(header, data + sizeof header)) {
        return Error{Errc::kCorrupt, 0, "read catalogue: checksum"};
    }
    DaxCatalogue catalogue;
    std::memcpy(catalogue.uuid.data(), header.uuid, sizeof header.uuid);
    std::memcpy(catalogue.host.data(), header.host, sizeof header.host);
    catalogue.device_bytes = header.device_bytes;
    catalogue.align = header.align;
    catalogue.sequence = header.sequence;
    catalogue.epoch = header.epoch;
    if (is_striped) {
        // One device would be of kVersion.
        if (header.devices < 2) return Error{Errc::kCorrupt, 0, "read catalogue: devices"};
        catalogue.device = header.device;
        catalogue.devices = header.devices;
        catalogue.stripe = header.stripe;
    }
    for (std::uint64_t i = 0; i < header.entry_count; ++i) {
        FABRIC_TRY(DaxEntry entry, decode_entry(data + sizeof header + i * sizeof(StoredEntry)));
        catalogue.entries.push_back(std::move(entry));
    }
    if (!is_sound(catalogue)) return Error{Errc::kCorrupt, 0, "read catalogue: entries"};
    return catalogue;
}

Result<std::uint64_t> find_room(const DaxCatalogue& catalogue, Bytes bytes) {
    std::uint64_t best = 0;
    Bytes best_bytes = ~Bytes{0};
    std::uint64_t free_from = catalogue.align;
    // Of equals the first, so that the front of the device fills up first.
    const auto consider = [&](std::uint64_t end) {
        const Bytes hole = end - free_from;
        if (hole < bytes || hole >= best_bytes) return;
        best = free_from;
        best_bytes = hole;
    };
    for (const auto& entry : catalogue.entries) {
        consider(entry.offset);
        free_from = entry.offset + entry.bytes;
    }
    consider(catalogue.device_bytes / catalogue.align * catalogue.align);
    // No arena begins at 0: the catalogue does.
    if (best == 0) return Error{Errc::kNoMemory, 0, "create arena: no such range on the device"};
    return best;
}

}  // namespace fabricshm

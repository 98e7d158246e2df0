// The catalogue on a DAX device. What is accepted is written back as it was read, and new ranges
// are found next to the ranges that are taken.

#include "libfabricshm/machine/dax_catalogue.hpp"

#include "libfabricshm/base/crc32c.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricshm;

namespace {

// As in dax_catalogue.cpp: where the fields are that a repair has to set.
constexpr std::uint64_t kMagic = 0x3154414358414446;
constexpr std::size_t kHeader = 128;
constexpr std::size_t kEntry = 128;
constexpr std::size_t kCrcAt = 12;
constexpr std::size_t kCountAt = 72;
constexpr std::size_t kStateAt = 28;  // of an entry

void require_room(const DaxCatalogue& catalogue, Bytes bytes) {
    const auto found = find_room(catalogue, bytes);
    if (!found.ok()) return;
    const std::uint64_t begin = *found;
    FUZZ_REQUIRE(begin >= catalogue.align && begin % catalogue.align == 0);
    FUZZ_REQUIRE(begin <= catalogue.device_bytes && bytes <= catalogue.device_bytes - begin);
    for (const DaxEntry& entry : catalogue.entries) {
        FUZZ_REQUIRE(begin + bytes <= entry.offset || entry.offset + entry.bytes <= begin);
    }
}

void run(fuzz::Data input) {
    // A copy on a device is always whole.
    static fuzz::Buffer copy(kCatalogueCopyBytes);
    if (input.empty() || input.size() > copy.size()) return;
    std::memcpy(copy.data(), input.data(), input.size());
    const auto read = decode_catalogue(copy.data());
    std::memset(copy.data(), 0, input.size());
    if (!read.ok()) return;
    const auto bytes = encode_catalogue(*read);
    FUZZ_REQUIRE(bytes.size() <= kCatalogueCopyBytes);
    std::memcpy(copy.data(), bytes.data(), bytes.size());
    const auto again = decode_catalogue(copy.data());
    std::memset(copy.data(), 0, bytes.size());
    FUZZ_REQUIRE(again.ok() && encode_catalogue(*again) == bytes);
    for (const Bytes blocks : {1, 2, 1000}) require_room(*read, blocks * read->align);
}

std::vector<fuzz::Buffer> seeds() {
    constexpr Bytes kBlock = 2 * kMiB;
    DaxCatalogue catalogue;
    catalogue.uuid[0] = 1;
    catalogue.device_bytes = 64 * kBlock;
    catalogue.align = kBlock;
    std::vector<fuzz::Buffer> all{encode_catalogue(catalogue)};
    catalogue.host[15] = 9;
    catalogue.entries.push_back({7, "job", 1000, kBlock, 2 * kBlock});
    all.push_back(encode_catalogue(catalogue));
    catalogue.entries.push_back({8, "other", 0, 8 * kBlock, kBlock});
    catalogue.entries.push_back({9, "", 0, 63 * kBlock, kBlock});
    all.push_back(encode_catalogue(catalogue));
    catalogue.devices = 3;
    catalogue.stripe = 2 * kBlock;
    all.push_back(encode_catalogue(catalogue));
    return all;
}

template <typename T>
void put(fuzz::Buffer& bytes, std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Magic, version, count, states and checksum are put right, but for one time in sixteen.
void mutate(fuzz::Buffer& bytes, std::size_t most, std::uint32_t random,
            const fuzz::MutateBytes& change) {
    change(bytes, most);
    if (random % 16 == 0 || bytes.size() < kHeader) return;
    bytes.resize(bytes.size() / kEntry * kEntry);
    const std::size_t entries = std::min(bytes.size() / kEntry - 1, kCatalogueEntriesMax);
    bytes.resize(kHeader + entries * kEntry);
    put(bytes, 0, kMagic);
    put<std::uint32_t>(bytes, 8, 1 + random / 16 % 2);
    put<std::uint64_t>(bytes, kCountAt, entries);
    for (std::size_t i = 0; i < entries && random % 16 != 1; ++i) {
        put<std::uint32_t>(bytes, kHeader + i * kEntry + kStateAt, 1);
    }
    put<std::uint32_t>(bytes, kCrcAt, 0);
    put(bytes, kCrcAt, crc32c(bytes.data(), bytes.size()));
}

const fuzz::Registered kTarget({"catalogue", run, seeds, mutate});

}  // namespace

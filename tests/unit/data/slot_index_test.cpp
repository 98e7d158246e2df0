#include "fabricd/data/spill/slot_index.hpp"

#include <doctest/doctest.h>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/os/disk_writer.hpp"

using namespace fabricd;
using fabricshm::Errc;

namespace {

constexpr Bytes kBlock = fabricshm::kDiskBlock;

struct Written {
    SlotIndexHead head;
    std::vector<std::byte> bytes;
    std::uint32_t checksum;
};

Written written(const std::vector<SlotEntry>& entries) {
    Written one;
    one.head.catalogue.fill(std::byte{7});
    one.head.sequence = 9;
    one.bytes.resize(index_bytes(entries.size()));
    write_index(one.head, entries, one.bytes.data());
    one.checksum = fabricshm::crc32c(one.bytes.data(), one.bytes.size());
    return one;
}

Errc refusal(const Written& one) {
    const auto read = read_index(one.bytes, one.checksum, one.head);
    return read.ok() ? Errc::kOk : read.error().code;
}

Errc refusal_of(const SlotEntry& entry) {
    return refusal(written({entry}));
}

Bytes blocks_touched(Bytes place, Bytes bytes) {
    return (place + bytes - 1) / kBlock - place / kBlock + 1;
}

}  // namespace

TEST_SUITE("data.slot_index") {
    TEST_CASE("what was written is read") {
        const std::vector<SlotEntry> entries = {{1, 0, 0, 100, 11}, {2, 3, 4096, 4096, 12}};
        const Written one = written(entries);
        const auto read = read_index(one.bytes, one.checksum, one.head);
        REQUIRE(read.ok());
        CHECK(*read == entries);
        CHECK(refusal(written({})) == Errc::kOk);
    }

    TEST_CASE("an index of another slot, another catalogue, or other bytes is refused") {
        const Written good = written({{1, 0, 0, 100, 11}});
        Written other = good;
        other.head.sequence = 10;
        CHECK(refusal(other) == Errc::kCorrupt);
        other = good;
        other.head.catalogue[3] = std::byte{8};
        CHECK(refusal(other) == Errc::kCorrupt);
        for (std::size_t at = 0; at < good.bytes.size(); ++at) {
            other = good;
            other.bytes[at] ^= std::byte{1};
            CHECK(refusal(other) == Errc::kCorrupt);
        }
        for (std::size_t size = 0; size < good.bytes.size(); ++size) {
            other = good;
            other.bytes.resize(size);
            CHECK(refusal(other) == Errc::kCorrupt);
            // Also with a checksum that is right.
            other.checksum = fabricshm::crc32c(other.bytes.data(), size);
            CHECK(refusal(other) == Errc::kCorrupt);
        }
    }

    TEST_CASE("an entry that leads out of the slot is refused, whatever the checksum says") {
        CHECK(refusal_of({1, 0, 0, static_cast<std::uint32_t>(kSlotBytes), 0}) == Errc::kOk);
        CHECK(refusal_of({1, 0, 1, static_cast<std::uint32_t>(kSlotBytes), 0}) == Errc::kCorrupt);
        CHECK(refusal_of({1, 0, 0xffffffff, 2, 0}) == Errc::kCorrupt);
        CHECK(refusal_of({1, 0, 0, 0xffffffff, 0}) == Errc::kCorrupt);
        CHECK(refusal_of({1, 0, 0, 0, 0}) == Errc::kCorrupt);
        CHECK(refusal_of({0, 0, 0, 1, 0}) == Errc::kCorrupt);
    }

    TEST_CASE("a chunk touches no more blocks than its bytes need, and comes close behind") {
        for (const Bytes end : {0U, 1U, 64U, 100U, 4000U, 4095U, 4096U, 10'000U}) {
            for (const Bytes bytes : {1U, 64U, 2000U, 4095U, 4096U, 4097U, 10'240U, 100'000U}) {
                const Bytes place = place_behind(end, bytes);
                CHECK(place >= end);
                CHECK(place - end < kBlock);
                CHECK(blocks_touched(place, bytes) == (bytes + kBlock - 1) / kBlock);
            }
        }
        // 10 KiB leave half a block to the next that is small enough.
        CHECK(place_behind(10'240, 2048) == 10'240);
        CHECK(place_behind(10'240, 2049) == 12'288);
    }

    TEST_CASE("a slot has room for its index") {
        CHECK_FALSE(fits_slot(kSlotBytes, 1));
        CHECK(fits_slot(kSlotBytes - kBlock, 1));
        CHECK_FALSE(fits_slot(kSlotBytes - kBlock + 1, 1));
        CHECK_FALSE(fits_slot(kSlotBytes - kBlock, 200));
        // An index has a bound of its own, so that many are read at a time.
        CHECK_FALSE(fits_slot(0, kMaxIndexBytes / sizeof(SlotEntry)));
    }
}

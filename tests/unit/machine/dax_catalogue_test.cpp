#include "libfabricshm/machine/dax_catalogue.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>

using namespace fabricshm;

namespace {

constexpr Bytes kDaxBlock = 2 * kMiB;

DaxCatalogue two_arenas() {
    DaxCatalogue catalogue;
    catalogue.uuid = parse_uuid("00112233-4455-6677-8899-aabbccddeeff").value();
    catalogue.device_bytes = 64 * kMiB;
    catalogue.align = kDaxBlock;
    catalogue.sequence = 41;
    catalogue.entries = {{7, "left", 1000, kDaxBlock, 2 * kDaxBlock},
                         {9, std::string(80, 'x'), 1001, 8 * kDaxBlock, kDaxBlock}};
    return catalogue;
}

/// One copy as it lies on the device.
std::vector<std::byte> stored(const DaxCatalogue& catalogue) {
    auto bytes = encode_catalogue(catalogue);
    bytes.resize(kCatalogueCopyBytes);
    return bytes;
}

Errc outcome(const DaxCatalogue& catalogue) {
    const auto decoded = decode_catalogue(stored(catalogue).data());
    return decoded.ok() ? Errc::kOk : decoded.error().code;
}

}  // namespace

TEST_SUITE("machine.dax_catalogue") {
    TEST_CASE("what is written is read back, names cut to what is kept") {
        const auto again = decode_catalogue(stored(two_arenas()).data()).value();
        CHECK(format_uuid(again.uuid) == "00112233-4455-6677-8899-aabbccddeeff");
        CHECK(again.sequence == 41);
        REQUIRE(again.entries.size() == 2);
        CHECK(again.entries[0].name == "left");
        CHECK(again.entries[0].uid == 1000);
        CHECK(again.entries[1].arena_id == 9);
        CHECK(again.entries[1].offset == 8 * kDaxBlock);
        CHECK(again.entries[1].name == std::string(63, 'x'));
    }

    TEST_CASE("any changed byte is found") {
        const auto good = stored(two_arenas());
        const std::size_t used = encode_catalogue(two_arenas()).size();
        for (std::size_t at = 0; at < used; ++at) {
            auto bad = good;
            bad[at] ^= std::byte{1};
            CAPTURE(at);
            REQUIRE_FALSE(decode_catalogue(bad.data()).ok());
        }
    }

    TEST_CASE("no catalogue, a later version and a damaged one are distinguished") {
        std::vector<std::byte> bytes(kCatalogueCopyBytes);
        CHECK(decode_catalogue(bytes.data()).error().code == Errc::kNotFound);
        bytes = stored(two_arenas());
        bytes[8] = std::byte{3};
        CHECK(decode_catalogue(bytes.data()).error().code == Errc::kVersion);
        bytes = stored(two_arenas());
        std::fill(bytes.begin() + 56, bytes.begin() + 64, std::byte{0xff});  // the count of entries
        CHECK(decode_catalogue(bytes.data()).error().code == Errc::kCorrupt);
    }

    TEST_CASE("entries that overlap, leave the device, repeat or are no whole blocks are refused") {
        CHECK(outcome(two_arenas()) == Errc::kOk);
        const auto refuses = [](auto change) {
            DaxCatalogue catalogue = two_arenas();
            change(catalogue);
            return outcome(catalogue) == Errc::kCorrupt;
        };
        CHECK(refuses([](auto& c) { c.entries[1].offset = 2 * kDaxBlock; }));
        CHECK(refuses([](auto& c) { c.entries[1].offset = 32 * kDaxBlock; }));
        CHECK(refuses([](auto& c) { c.entries[1].bytes = ~Bytes{0} / kDaxBlock * kDaxBlock; }));
        CHECK(refuses([](auto& c) { c.entries[1].bytes = 0; }));
        CHECK(refuses([](auto& c) { c.entries[1].bytes += 4096; }));
        CHECK(refuses([](auto& c) { c.entries[1].offset += 4096; }));
        CHECK(refuses([](auto& c) { c.entries[0].offset = 0; }));
        CHECK(refuses([](auto& c) { c.entries[1].arena_id = 7; }));
        CHECK(refuses([](auto& c) { c.align = 4096; }));
        CHECK(refuses([](auto& c) { std::swap(c.entries[0], c.entries[1]); }));
    }

    TEST_CASE("devices of one pool are of a version of their own, with rules of their own") {
        DaxCatalogue first = two_arenas();
        first.devices = 3;
        first.stripe = 2 * kDaxBlock;
        const auto bytes = stored(first);
        CHECK(stored(two_arenas())[8] == std::byte{1});
        CHECK(bytes[8] == std::byte{2});
        const auto again = decode_catalogue(bytes.data()).value();
        CHECK(again.devices == 3);
        CHECK(again.stripe == 2 * kDaxBlock);
        CHECK(again.entries.size() == 2);
        const auto refuses = [&](auto change) {
            DaxCatalogue catalogue = first;
            change(catalogue);
            return outcome(catalogue) == Errc::kCorrupt;
        };
        CHECK_FALSE(refuses([](auto&) {}));
        CHECK(refuses([](auto& c) { c.device = 1; }));  // a label has no arenas
        CHECK_FALSE(refuses([](auto& c) { c.device = 2, c.entries.clear(); }));
        CHECK(refuses([](auto& c) { c.device = 3, c.entries.clear(); }));
        CHECK(refuses([](auto& c) { c.devices = 9; }));
        CHECK(refuses([](auto& c) { c.devices = 0; }));
        CHECK(refuses([](auto& c) { c.stripe = 0; }));
        CHECK(refuses([](auto& c) { c.stripe = kDaxBlock + 4096; }));
    }

    TEST_CASE("a device of less than two blocks has no room for arenas, and is refused") {
        DaxCatalogue catalogue = two_arenas();
        catalogue.entries.clear();
        for (const Bytes bytes : {Bytes{0}, Bytes{4096}, kDaxBlock, 2 * kDaxBlock - 1}) {
            catalogue.device_bytes = bytes;
            CHECK(outcome(catalogue) == Errc::kCorrupt);
        }
        catalogue.device_bytes = 2 * kDaxBlock;
        CHECK(outcome(catalogue) == Errc::kOk);
    }

    TEST_CASE("the smallest hole that fits is taken") {
        DaxCatalogue catalogue = two_arenas();  // holes: blocks 3-7 (5) and 9-31 (23)
        CHECK(find_room(catalogue, 5 * kDaxBlock).value() == 3 * kDaxBlock);
        CHECK(find_room(catalogue, 6 * kDaxBlock).value() == 9 * kDaxBlock);
        CHECK(find_room(catalogue, 24 * kDaxBlock).error().code == Errc::kNoMemory);
        catalogue.entries.clear();
        CHECK(find_room(catalogue, 31 * kDaxBlock).value() == kDaxBlock);
        CHECK(find_room(catalogue, 32 * kDaxBlock).error().code == Errc::kNoMemory);
    }

    TEST_CASE("UUIDs are read with and without hyphens, and nothing else is") {
        CHECK(parse_uuid("00112233445566778899aabbccddeeff").ok());
        for (const char* text : {"", "0011", "00112233-4455-6677-8899-aabbccddeefg",
                                 "00112233-4455-6677-8899-aabbccddeeff0"}) {
            CAPTURE(text);
            CHECK_FALSE(parse_uuid(text).ok());
        }
    }
}

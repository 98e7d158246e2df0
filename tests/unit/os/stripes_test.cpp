#include "libfabricshm/os/stripes.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace fabricshm;

TEST_SUITE("os.stripes") {
    TEST_CASE("one file is as it is") {
        const Stripes one;
        const auto part = one.first(12345, 678);
        CHECK(part.file == 0);
        CHECK(part.offset == 12345);
        CHECK(part.bytes == 678);
        CHECK(one.part(0, 12345, 678).offset == 12345);
    }

    TEST_CASE("pieces of any range cover it in order, and each file's are one range of it") {
        std::mt19937_64 random(7);
        const auto below = [&](std::uint64_t bound) { return random() % bound; };
        for (int round = 0; round < 2000; ++round) {
            CAPTURE(round);
            const Stripes stripes{static_cast<std::uint32_t>(2 + below(7)), 1 + below(9), below(5)};
            const std::uint64_t start = stripes.skip + below(100);
            const Bytes bytes = below(200);
            // The oracle deals out byte by byte, as cards.
            std::vector<std::vector<std::uint64_t>> dealt(stripes.files);
            std::vector<std::uint64_t> given(stripes.files, stripes.skip);
            std::vector<std::pair<std::uint32_t, std::uint64_t>> places;
            for (std::uint64_t at = stripes.skip, file = 0, left = stripes.bytes;
                 at < start + bytes; ++at) {
                const std::uint64_t place = given[file]++;
                if (at >= start) {
                    dealt[file].push_back(place);
                    places.emplace_back(static_cast<std::uint32_t>(file), place);
                }
                if (--left == 0) {
                    file = (file + 1) % stripes.files;
                    left = stripes.bytes;
                }
            }
            for (Bytes done = 0; done < bytes;) {
                const auto piece = stripes.first(start + done, bytes - done);
                REQUIRE(piece.bytes > 0);
                REQUIRE(piece.bytes <= bytes - done);
                for (Bytes i = 0; i < piece.bytes; ++i) {
                    REQUIRE(places[done + i].first == piece.file);
                    REQUIRE(places[done + i].second == piece.offset + i);
                }
                done += piece.bytes;
            }
            for (std::uint32_t file = 0; file < stripes.files; ++file) {
                const auto part = stripes.part(file, start, bytes);
                REQUIRE(part.file == file);
                REQUIRE(part.bytes == dealt[file].size());
                if (part.bytes == 0) continue;
                REQUIRE(part.offset == dealt[file].front());
                REQUIRE(part.offset + part.bytes - 1 == dealt[file].back());
            }
        }
    }
}

#include "fabricd/net/place_file.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "tests/support/temporary_directory.hpp"

using namespace fabricd;

namespace {
const PlaceOwner kOwner{"lab", "a", 77};
}

TEST_SUITE("net.place_file") {
    TEST_CASE("a place comes back to its owner, and to no other") {
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.file("cluster");
        CHECK(read_place(path, kOwner).incarnation == 0);
        REQUIRE(write_place(path, kOwner, {1234567890123, -5}).ok());
        CHECK(read_place(path, kOwner).incarnation == 1234567890123);
        CHECK(read_place(path, kOwner).lease == -5);
        CHECK(read_place(path, {"lab", "b", 77}).incarnation == 0);
        CHECK(read_place(path, {"lab2", "a", 77}).incarnation == 0);
        CHECK(read_place(path, {"lab", "a", 78}).incarnation == 0);
        REQUIRE(write_place(path, kOwner, {}).ok());
        CHECK(read_place(path, kOwner).incarnation == 0);
        CHECK(write_place(path, kOwner, {}).ok());
    }

    TEST_CASE("a file that was cut off or changed is no place") {
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.file("cluster");
        REQUIRE(write_place(path, kOwner, {42, 43}).ok());
        std::ifstream file(path);
        const std::string whole(std::istreambuf_iterator<char>(file), {});
        for (std::size_t length = 0; length + 1 < whole.size(); ++length) {
            std::ofstream(path, std::ios::trunc) << whole.substr(0, length);
            CHECK(read_place(path, kOwner).incarnation == 0);
        }
        std::ofstream(path, std::ios::trunc) << "fabricd-place 1 lab a 77 42 43 . 44\n";
        CHECK(read_place(path, kOwner).incarnation == 0);
    }

    TEST_CASE("a folder that can't be written to is an error, and leaves nothing behind") {
        CHECK_FALSE(write_place("/no/such/folder/cluster", kOwner, {1, 2}).ok());
    }
}

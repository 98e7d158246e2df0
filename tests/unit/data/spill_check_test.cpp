#include "fabricd/data/program/spill_check.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::kGiB;
using fabricshm::kMiB;

namespace {

std::string line_of(const std::string& folder, fabricshm::Bytes bytes) {
    DataSpec spec;
    spec.spill = folder;
    spec.spill_bytes = bytes;
    spec.spill_line = 3;
    const auto check = check_spill(spec);
    REQUIRE(check);
    return as_text(*check, "d.toml");
}

}  // namespace

TEST_SUITE("data.spill_check") {
    TEST_CASE("a spill that can be used is named with its size, another with its line and reason") {
        const test_support::TemporaryDirectory folder;
        CHECK(line_of(folder.path(), 64 * kMiB) == "spill  " + folder.path() + "  64 MiB\n");
        CHECK(std::filesystem::is_empty(folder.path()));
        CHECK(line_of(folder.file("none"), 64 * kMiB) ==
              "d.toml:3: spill: " + folder.file("none") + ": No such file or directory\n");
        const std::string full = line_of(folder.path(), 100'000 * kGiB);
        CHECK(full.rfind("d.toml:3: spill: " + folder.path() +
                             ": has not the room for spill_bytes 97.7 TiB, but for ",
                         0) == 0);
        CHECK_FALSE(check_spill({}));
    }
}

#include "fabricd/data/program/host_check.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.hpp"

using namespace fabricd;

TEST_SUITE("data.host_check") {
    TEST_CASE(
        "a spill or a folder for state in a silo's folder is refused, as its files would be read") {
        const test_support::TemporaryDirectory folder;
        std::filesystem::create_directories(folder.file("silo/deep"));
        std::filesystem::create_directories(folder.file("silo-more"));
        DataSpec spec;
        spec.silos.push_back({"/set", folder.file("silo"), 9, "", "", "", ""});
        spec.spill_line = 4;
        spec.state_line = 5;
        spec.spill = folder.file("silo-more");
        CHECK(check_host(spec).empty());
        spec.spill = folder.file("silo/");
        spec.state = folder.file("silo/deep");
        CHECK(as_text(check_host(spec), "d.toml") ==
              "d.toml:4: spill: " + folder.file("silo/") + " lies in the silo /set (" +
                  folder.file("silo") + ")\nd.toml:5: state: " + folder.file("silo/deep") +
                  " lies in the silo /set (" + folder.file("silo") + ")\n");
    }

    TEST_CASE("a group and a folder for state that are not there are named with their lines") {
        const test_support::TemporaryDirectory folder;
        DataSpec spec;
        CHECK(check_host(spec).empty());
        spec.group = "root";
        spec.group_line = 7;
        spec.state = folder.path();
        spec.state_line = 3;
        CHECK(check_host(spec).empty());
        spec.group = "no-such-group";
        spec.state = folder.file("none");
        CHECK(as_text(check_host(spec), "d.toml") ==
              "d.toml:7: group: this host has no group no-such-group\n"
              "d.toml:3: state: " +
                  folder.file("none") + ": No such file or directory\n");
        std::ofstream(folder.file("file")) << "x";
        spec.group = "";
        spec.state = folder.file("file");
        CHECK(as_text(check_host(spec), "d.toml") ==
              "d.toml:3: state: " + folder.file("file") + ": is no folder\n");
    }
}

#include "fabricd/data/program/silo_check.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fabricd/data/prep/jpeg.hpp"
#include "tests/support/small_jpeg.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;

TEST_SUITE("data.silo_check") {
    TEST_CASE("each silo is counted, and what is wrong is named with its line of the file") {
        const test_support::TemporaryDirectory folder;
        std::filesystem::create_directories(folder.file("images"));
        std::ofstream(folder.file("images/a")) << "a";
        REQUIRE(::mkfifo(folder.file("images/pipe").c_str(), 0600) == 0);
        const std::vector<SiloCheck> checks = {
            check_silo(
                {"/images", folder.file("images"), 3, "", "", "", "", {}, WritePolicy::kOff}),
            check_silo(
                {"/gone", folder.file("gone"), 6, "", "", "", "", {}, WritePolicy::kThrough})};
        CHECK(as_text(checks, "d.toml") ==
              "/images  " + folder.file("images") + "  1 entry in its root, read-only\n" +
                  "    left out: 1, the first pipe: neither a file nor a folder\n" +
                  "d.toml:6: /gone: " + folder.file("gone") + " is not there\n");
        const std::string json = as_json(checks);
        CHECK(json.find("\"entries\":1") != std::string::npos);
        CHECK(json.find("\"write\":\"off\"") != std::string::npos);
        CHECK(json.find("\"write\":\"through\"") != std::string::npos);
        CHECK(json.find("\"line\":6") != std::string::npos);
        CHECK(json.find("is not there") != std::string::npos);
    }

    TEST_CASE("a silo that jobs write into says how, and is refused where this user may not") {
        const test_support::TemporaryDirectory folder;
        SiloSpec silo;
        silo.at = "/out";
        silo.from = folder.path();
        silo.write = WritePolicy::kBack;
        CHECK(as_text({check_silo(silo)}, "d.toml") ==
              "/out  " + folder.path() + "  0 entries in its root, write \"back\"\n");
        if (::geteuid() == 0) return;  // may write everywhere
        ::chmod(folder.path().c_str(), 0500);
        CHECK(as_text({check_silo(silo)}, "d.toml").find("may not be written") !=
              std::string::npos);
        ::chmod(folder.path().c_str(), 0700);
    }

    TEST_CASE("of a prep the first file is prepared, below the first folders") {
        if (!JpegDecoder::is_built()) return;
        const test_support::TemporaryDirectory folder;
        std::filesystem::create_directories(folder.file("in/n01"));
        std::ofstream(folder.file("in/n01/a.jpeg")) << test_support::small_jpeg();
        PrepSpec prep;
        prep.source = {"/in", folder.file("in"), 1, "", "", "", ""};
        REQUIRE_FALSE(parse_steps({"decode", "resize 4x4"}, prep.steps));
        SiloSpec silo = {"/small", "of /in: decode, resize 4x4", 4, "", "", "", ""};
        silo.prep = std::make_shared<const PrepSpec>(prep);
        CHECK(as_text({check_silo(silo)}, "d.toml") ==
              "/small  of /in: decode, resize 4x4  1 entry in its root, read-only\n"
              "    prepared: n01/a.jpeg.npy: 176 bytes\n");
        std::ofstream(folder.file("in/n01/a.jpeg")) << "no picture";
        CHECK(as_text({check_silo(silo)}, "d.toml")
                  .rfind("d.toml:4: /small: n01/a.jpeg: no JPEG", 0) == 0);
    }

    TEST_CASE("names of any bytes make JSON") {
        SiloCheck check;
        check.first_left_out = "\xff\xfe\n";
        CHECK(as_json({check}).find('\xff') == std::string::npos);
    }
}

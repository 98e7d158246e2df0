#include "libfabricshm/collective/tuning.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include "libfabricshm/shm/group_block.hpp"

using namespace fabricshm;

TEST_SUITE("collective.tuning") {
    TEST_CASE("what is written is read back, for its own world size only") {
        Tuning tuning;
        tuning.max_flat = 12345;
        tuning.spins = 7;
        const std::string text = "# a comment\n" + format_tuning(tuning, 4);
        CHECK(parse_tuning(text, 4, Tuning{}).value() == tuning);
        CHECK(parse_tuning(text, 2, Tuning{}).value() == Tuning{});
    }

    TEST_CASE("unknown keys and values out of range are refused") {
        CHECK_FALSE(parse_tuning("4.nonsense = 1\n", 4, {}).ok());
        CHECK_FALSE(parse_tuning("4.spins = many\n", 4, {}).ok());
        CHECK_FALSE(parse_tuning("4.piece_bytes = 1\n", 4, {}).ok());
        CHECK_FALSE(parse_tuning("nothing here\n", 4, {}).ok());
    }

    TEST_CASE("a key under its former name is refused with the name that it has now") {
        for (const std::string what : {"flat", "ahead", "tree"}) {
            const auto parsed = parse_tuning("4." + what + "_most_bytes = 1024\n", 4, {});
            REQUIRE_FALSE(parsed.ok());
            const std::string message = parsed.error().step;
            CHECK(message.find(what + "_most_bytes is called " + what + "_max_bytes") !=
                  std::string::npos);
            CHECK(parse_tuning("4." + what + "_max_bytes = 1024\n", 4, {}).ok());
        }
    }

    TEST_CASE("words of the block are clamped into their ranges") {
        Tuning tuning;
        tuning.forced = Algorithm::kRing;
        std::uint64_t words[kTuningWords] = {};
        pack_tuning(tuning, words);
        CHECK(unpack_tuning(words) == tuning);
        for (std::uint64_t& word : words) word = ~std::uint64_t{0};
        const Tuning wild = unpack_tuning(words);
        CHECK(wild.piece_bytes <= 64 * kMiB);
        CHECK(wild.forced == Algorithm::kAuto);
    }

    TEST_CASE("each emulated machine has a file of its own, unless one is named for all") {
        ::unsetenv("FABRIC_TUNING");
        ::setenv("XDG_CACHE_HOME", "/cache", 1);
        CHECK(tuning_path() == "/cache/fabricd/tuning.conf");
        CHECK(tuning_path("cxl_box") == "/cache/fabricd/tuning-cxl_box.conf");
        ::setenv("FABRIC_TUNING", "/named.conf", 1);
        CHECK(tuning_path("cxl_box") == "/named.conf");
        ::unsetenv("FABRIC_TUNING");
    }

    TEST_CASE("algorithms have names") {
        CHECK(parse_algorithm("ring").value() == Algorithm::kRing);
        CHECK_FALSE(parse_algorithm("magic").ok());
        CHECK(std::string(name_of(Algorithm::kStaged)) == "staged");
    }
}

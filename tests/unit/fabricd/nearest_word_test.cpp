#include "fabricd/config/nearest_word.hpp"

#include <doctest/doctest.h>

using fabricd::did_you_mean;
using fabricd::nearest_word;

TEST_SUITE("fabricd.nearest_word") {
    TEST_CASE("a slip of the fingers finds the word that was meant") {
        const std::vector<std::string> known{"status", "sessions", "pools", "top", "drain"};
        CHECK(nearest_word("statsu", known) == "status");
        CHECK(nearest_word("pool", known) == "pools");
        CHECK(nearest_word("sesions", known) == "sessions");
        CHECK(nearest_word("drian", known) == "drain");
        CHECK(did_you_mean("statsu", known) == " (did you mean status?)");
    }

    TEST_CASE("a word that is none of them finds none") {
        const std::vector<std::string> known{"status", "top"};
        CHECK(nearest_word("reboot", known).empty());
        CHECK(nearest_word("x", known).empty());
        CHECK(nearest_word("", known).empty());
        CHECK(nearest_word(std::string(100000, 's'), known).empty());
        CHECK(did_you_mean("reboot", known).empty());
    }
}

#include "fabricd/net/trouble_log.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using namespace std::chrono_literals;

TEST_SUITE("net.trouble_log") {
    TEST_CASE("a trouble that is met every second is logged once a minute") {
        TroubleLog troubles;
        int lines = 0;
        for (auto at = 0s; at < 180s; at += 1s) {
            if (troubles.is_due("refused", BootTime{1000s + at})) ++lines;
        }
        CHECK(lines == 3);
    }

    TEST_CASE("two troubles in turns are each logged once a minute") {
        TroubleLog troubles;
        int lines = 0;
        for (auto at = 0s; at < 60s; at += 1s) {
            const char* text = at % 2s == 0s ? "no answer of e1" : "no answer of e2";
            if (troubles.is_due(text, BootTime{1000s + at})) ++lines;
        }
        CHECK(lines == 2);
    }

    TEST_CASE("another trouble is logged at once") {
        TroubleLog troubles;
        CHECK(troubles.is_due("one", BootTime{1000s}));
        CHECK(troubles.is_due("two", BootTime{1000s}));
        CHECK_FALSE(troubles.is_due("one", BootTime{1059s}));
        CHECK(troubles.is_due("one", BootTime{1060s}));
    }
}

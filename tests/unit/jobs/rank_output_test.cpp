#include "fabricd/jobs/rank_output.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

TEST_SUITE("jobs.rank_output") {
    TEST_CASE("lines have the prefix once, however they come") {
        LinePrefixer lines("[3] ");
        CHECK(lines.add("a") == "");
        CHECK(lines.add("b\nc") == "[3] ab\n");
        CHECK(lines.add("\n\nd\n") == "[3] c\n[3] \n[3] d\n");
        CHECK(lines.finish() == "");
        CHECK(lines.add("rest") == "");
        CHECK(lines.finish() == "[3] rest\n");
    }

    TEST_CASE("a line without an end is cut") {
        LinePrefixer lines;
        const std::string much(100'000, 'x');
        CHECK(lines.add(much).size() == much.size() + 1);
    }

    TEST_CASE("the last lines are whole ones, and the rest that has no end yet") {
        LastLines last(2);
        CHECK(last.lines().empty());
        last.add("a\nb\nc");
        CHECK(last.lines() == std::vector<std::string>{"b", "c"});
        last.add("c\n");
        CHECK(last.lines() == std::vector<std::string>{"b", "cc"});
        last.add(std::string(5000, 'y') + "\n");
        CHECK(last.lines()[1].size() == 1024);
    }
}

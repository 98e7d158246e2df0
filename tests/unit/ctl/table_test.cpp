#include "fabricd/ctl/table.hpp"

#include <doctest/doctest.h>

using fabricd::Table;

TEST_SUITE("ctl.table") {
    TEST_CASE("columns are as wide as their widest cell, numbers to the right, no blanks behind") {
        Table table({{"NAME"}, {"SIZE", Table::Align::kRight}, {"STATE"}});
        table.add({"a", "10", "live"});
        table.add({"longer name", "1000000", "x"});
        CHECK(table.text() ==
              "NAME            SIZE  STATE\n"
              "a                 10  live\n"
              "longer name  1000000  x\n");
    }

    TEST_CASE("a table without rows says so") {
        CHECK(Table({{"NAME"}}).text() == "none\n");
    }
}

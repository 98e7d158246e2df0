#include "emu/sim/sim_units.hpp"

#include <doctest/doctest.h>

using namespace emu;

TEST_SUITE("sim.sim_units") {
    TEST_CASE("rates are powers of 1000 unless they say otherwise") {
        CHECK(parse_rate("64 GB/s").value() == 64e9);
        CHECK(parse_rate("10.1GB/s").value() == doctest::Approx(10.1e9));
        CHECK(parse_rate("1GiB/s").value() == 1024.0 * 1024 * 1024);
        CHECK_FALSE(parse_rate("64").ok());
        CHECK_FALSE(parse_rate("64 GB").ok());
        CHECK_FALSE(parse_rate("-1 GB/s").ok());
        CHECK_FALSE(parse_rate("fast").ok());
    }

    TEST_CASE("times need a unit") {
        CHECK(parse_seconds("750ns").value() == doctest::Approx(750e-9));
        CHECK(parse_seconds("1.5 us").value() == doctest::Approx(1.5e-6));
        CHECK_FALSE(parse_seconds("750").ok());
        CHECK_FALSE(parse_seconds("nan s").ok());
    }

    TEST_CASE("what is shown has three digits and a unit") {
        CHECK(format_seconds(12.34e-6) == "12.3 us");
        CHECK(format_seconds(0) == "0 s");
        CHECK(format_rate(46e9) == "46.0 GB/s");
    }
}

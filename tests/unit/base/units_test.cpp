#include "libfabricshm/base/units.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace fabricshm;
using namespace std::chrono_literals;

TEST_SUITE("base.units") {
    TEST_CASE("sizes are read in powers of 1024 with and without the i") {
        CHECK(parse_bytes("4096").value() == 4096);
        CHECK(parse_bytes("64KiB").value() == 64 * kKiB);
        CHECK(parse_bytes("1.5 GiB").value() == 3 * kGiB / 2);
        CHECK(parse_bytes("2G").value() == 2 * kGiB);
    }

    TEST_CASE("what is not a size or a duration is refused") {
        for (const char* text : {"", "GiB", "-1", "1 parsec", "1e400", "nan", "inf", "12KiBx"}) {
            CAPTURE(text);
            CHECK_FALSE(parse_bytes(text).ok());
            CHECK_FALSE(parse_duration(text).ok());
        }
        CHECK_FALSE(parse_duration("5").ok());
    }

    TEST_CASE("a number is digits, with digits behind a point: no exponent and no open point") {
        for (const char* number :
             {"1e3", "1.", ".5", "1.e1", "1.5.", "+1", "-1", "0x10", "1 2", "."}) {
            for (const char* unit : {"", "G", " GiB"}) {
                CAPTURE(number);
                CAPTURE(unit);
                CHECK_FALSE(parse_bytes(std::string(number) + unit).ok());
            }
            CHECK_FALSE(parse_duration(std::string(number) + "s").ok());
        }
        CHECK(parse_bytes("0.5G").value() == kGiB / 2);
        CHECK(parse_duration("0.25s").value() == 250ms);
    }

    TEST_CASE("durations need a unit and keep it") {
        CHECK(parse_duration("250ms").value() == 250ms);
        CHECK(parse_duration("2min").value() == 120s);
        CHECK(parse_duration("8h").value() == 8h);
        CHECK(parse_duration("2d").value() == 48h);
        CHECK(format_duration(1500ms) == "1.5 s");
        CHECK(format_bytes(64 * kMiB) == "64 MiB");
    }

    TEST_CASE("a deadline from now on is never early and at most one tick late") {
        for (const Duration length : {Duration(0), Duration(999ms), Duration(1s), Duration(1h)}) {
            const TimePoint before = Clock::now();
            const TimePoint deadline = deadline_from_now(length);
            const TimePoint after = Clock::now();
            CHECK(deadline >= before + length);
            CHECK(deadline <= after + length + 10ms);
        }
        CHECK(deadline_from_now(Duration::max()) == TimePoint::max());
    }

    TEST_CASE("an endless length does not overflow the deadline") {
        CHECK(deadline_after(Clock::now(), Duration::max()) == TimePoint::max());
    }
}

#include "libfabricshm/base/check.hpp"

#include <doctest/doctest.h>

#include "tests/support/aborts.hpp"

using test_support::aborts_with;

TEST_SUITE("base.check") {
    TEST_CASE("a check that holds does nothing, and one that fails names itself and aborts") {
        const int two = 2;
        CHECK(aborts_with([&] { FABRIC_CHECK(two == 2); }).empty());
        const std::string text = aborts_with([&] { FABRIC_CHECK(two == 3); });
        CHECK(text.find("check failed: two == 3") != std::string::npos);
        CHECK(text.find("check_test.cpp") != std::string::npos);
    }

    TEST_CASE("a debug check is evaluated exactly where checks for debugging are on") {
        int evaluated = 0;
        FABRIC_DCHECK(++evaluated > 0);
#if defined(FABRIC_DCHECKS) || !defined(NDEBUG)
        CHECK(evaluated == 1);
        CHECK_FALSE(aborts_with([] { FABRIC_DCHECK(false); }).empty());
#else
        CHECK(evaluated == 0);
#endif
    }
}

#include "libfabricshm/base/crc32c.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

using fabricshm::crc32c;

TEST_SUITE("base.crc32c") {
    TEST_CASE("the published check values come out") {
        CHECK(crc32c("123456789", 9) == 0xe3069283U);
        const std::string zeros(32, '\0');
        CHECK(crc32c(zeros.data(), zeros.size()) == 0x8a9136aaU);  // RFC 3720, B.4
        CHECK(crc32c("", 0) == 0);
    }

    TEST_CASE("pieces continue each other") {
        CHECK(crc32c("6789", 4, crc32c("12345", 5)) == crc32c("123456789", 9));
    }
}

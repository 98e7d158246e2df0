#include "libfabricshm/base/host_port.hpp"

#include <doctest/doctest.h>

using fabricshm::parse_host_port;

TEST_SUITE("base.host_port") {
    TEST_CASE("a host and a port are taken apart, an address of IPv6 without its brackets") {
        const auto four = parse_host_port("127.0.0.1:7400");
        REQUIRE(four.has_value());
        CHECK(four->host == "127.0.0.1");
        CHECK(four->port == 7400);
        const auto six = parse_host_port("[::1]:65535");
        REQUIRE(six.has_value());
        CHECK(six->host == "::1");
        CHECK(six->port == 65535);
        CHECK(parse_host_port("host-a:0")->host == "host-a");
    }

    TEST_CASE("what is no host and port is refused") {
        for (const char* text :
             {"", ":", ":80", "a", "a:", "a:b", "a:80x", "a:-1", "a:+1", "a: 1", "a:65536",
              "::1:80", "[]:80", "[:80", "]:80", "[::1:80", "[::1]", "[::1]80", "a]:80"}) {
            CAPTURE(text);
            CHECK_FALSE(parse_host_port(text).has_value());
        }
    }
}

// Which networks a group of several hosts may use.

#include "libfabricshm/net/trusted.hpp"

#include <doctest/doctest.h>

#include <string>

#include "libfabricshm/base/reason.hpp"

using namespace fabricshm;
using net::lies_in;
using net::trusted_address;

TEST_SUITE("net.trusted") {
    TEST_CASE("an address is compared by as many bits as the network has") {
        CHECK(lies_in("10.1.2.3", "10.0.0.0/8").value());
        CHECK_FALSE(lies_in("11.1.2.3", "10.0.0.0/8").value());
        CHECK(lies_in("10.1.2.3", "10.1.2.2/31").value());
        CHECK_FALSE(lies_in("10.1.2.4", "10.1.2.2/31").value());
        CHECK(lies_in("10.1.2.3", "10.1.2.3").value());
        CHECK(lies_in("192.0.2.1", "0.0.0.0/0").value());
        CHECK(lies_in("fd00::1", "fd00::/8").value());
        CHECK_FALSE(lies_in("10.1.2.3", "fd00::/8").value());
    }

    TEST_CASE("what is no network is an error") {
        for (const char* network : {"10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "ten", "fd00::/129"}) {
            CHECK(lies_in("10.1.2.3", network).error().code == Errc::kInvalid);
        }
    }

    TEST_CASE("without a network none is used, and the error names the option") {
        const auto none = trusted_address("");
        REQUIRE_FALSE(none.ok());
        CHECK(none.error().code == Errc::kDenied);
        CHECK(explanation_of(none.error()).find(net::kTrustedVariable) != std::string::npos);
    }

    TEST_CASE("without a network the variable and the option that name one are in the text") {
        for (const char* networks : {"", "203.0.113.0/24"}) {
            const auto none = net::trusted_address(networks);
            REQUIRE_FALSE(none.ok());
            const std::string text = explanation_of(none.error());
            CHECK(text.find("FABRIC_NET_TRUSTED") != std::string::npos);
            CHECK(text.find("fabricrun --trusted") != std::string::npos);
        }
    }

    TEST_CASE("the first network that this host has an address in counts") {
        CHECK(trusted_address("198.51.100.0/24, 127.0.0.0/8").value() == "127.0.0.1");
        CHECK(trusted_address("198.51.100.0/24").error().code == Errc::kDenied);
        CHECK(trusted_address("127.0.0.0/99").error().code == Errc::kInvalid);
    }
}

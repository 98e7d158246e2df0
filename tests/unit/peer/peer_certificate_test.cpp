#include "fabricd/peer/peer_certificate.hpp"

#include <doctest/doctest.h>

using fabricd::CertificateNames;
using fabricd::has_name;

TEST_SUITE("peer.peer_certificate") {
    TEST_CASE("the common name does not count where there is a subjectAltName") {
        const CertificateNames names{true, {"b", "10.0.0.2"}, {"a"}};
        CHECK(has_name(names, "b"));
        CHECK(has_name(names, "10.0.0.2"));
        CHECK_FALSE(has_name(names, "a"));
        // One of addresses of mail, say.
        CHECK_FALSE(has_name({true, {}, {"a"}}, "a"));
    }

    TEST_CASE("without a subjectAltName the common name is the host's") {
        CHECK(has_name({false, {}, {"a"}}, "a"));
        CHECK_FALSE(has_name({false, {}, {"a"}}, "A"));
        CHECK_FALSE(has_name({false, {}, {}}, ""));
    }
}

#include "fabricd/ctl/doctor/host_facts.hpp"

#include <doctest/doctest.h>

#include "tests/unit/ctl/doctor/fake_host.hpp"

using namespace fabricd;
using fabricshm::kGiB;

TEST_SUITE("ctl.doctor.host_facts") {
    TEST_CASE("the first class of a mode that fits a user decides, and root needs none") {
        const UserFacts user{1000, {1000, 50}};
        CHECK(user.may_use({0600, 1000, 0}));
        CHECK_FALSE(user.may_use({0066, 1000, 50}));
        CHECK(user.may_use({0660, 0, 50}));
        CHECK_FALSE(user.may_use({0606, 0, 50}));
        CHECK(user.may_use({0006, 0, 0}));
        CHECK_FALSE(user.may_use({0440, 0, 50}));
        CHECK(UserFacts{0, {}}.may_use({0000, 1000, 50}));
    }

    TEST_CASE("a pool is the daemon's where one runs, else what is configured") {
        FakeHost host;
        CHECK(host.facts.process() == "self");
        CHECK(host.facts.pool_missing() == 8 * kGiB);
        host.start_daemon();
        host.facts.config.config.pool.capacity = kGiB;
        CHECK(host.facts.process() == "77");
        CHECK(host.facts.pool_capacity() == 8 * kGiB);
        CHECK(host.facts.pool_missing() == 4 * kGiB);
        host.facts.status->pool.used_bytes = 9 * kGiB;
        CHECK(host.facts.pool_missing() == 0);
    }

    TEST_CASE("the word in force is the one in brackets") {
        CHECK(chosen_word("always [madvise] never") == "madvise");
        CHECK(chosen_word("always madvise").empty());
        CHECK(chosen_word("] [").empty());
        CHECK(chosen_word("").empty());
    }

    TEST_CASE("a file that is not there has no owner") {
        FakeHost host;
        CHECK_FALSE(owner_of(host.facts.files, "/dev/dax9.0"));
        CHECK(owner_of(host.facts.files, "/dev/null"));
    }
}

#include "fabricd/pool/quota.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace fabricd;
using fabricshm::kMiB;

namespace {

Limits small() {
    Limits limits;
    limits.max_sessions = 3;
    limits.max_sessions_per_user = 2;
    limits.max_arenas_per_user = 2;
    limits.max_arena_bytes = 8 * kMiB;
    limits.user_quota_bytes = 12 * kMiB;
    return limits;
}

}  // namespace

TEST_SUITE("pool.quota") {
    TEST_CASE("one user cannot take all sessions of the host") {
        QuotaTable quotas(small());
        CHECK(quotas.take_session(1000).ok());
        CHECK(quotas.take_session(1000).ok());
        CHECK(quotas.take_session(1000).error().code == Errc::kNoMemory);
        CHECK(quotas.take_session(1001).ok());
        CHECK(std::string(quotas.take_session(1002).error().step) == "sessions of the host");
        quotas.give_session(1000);
        CHECK(quotas.take_session(1002).ok());
    }

    TEST_CASE("when all sessions are taken there are some for root and the daemon's user") {
        Limits limits = small();
        limits.own_uid = 7;
        limits.reserved_sessions = 2;
        QuotaTable quotas(limits);
        for (const std::uint32_t uid : {1000, 1001, 1002}) REQUIRE(quotas.take_session(uid).ok());
        CHECK_FALSE(quotas.take_session(1003).ok());
        CHECK(quotas.take_session(0).ok());
        CHECK(quotas.take_session(7).ok());
        CHECK(std::string(quotas.take_session(0).error().step) == "sessions of the host");
        // What root has is not taken from the others.
        quotas.give_session(0);
        CHECK_FALSE(quotas.take_session(1003).ok());
    }

    TEST_CASE("arenas are limited each, in number and in sum") {
        QuotaTable quotas(small());
        CHECK(std::string(quotas.take_arena(1000, 9 * kMiB, 9 * kMiB).error().step) ==
              "quota of the job");
        CHECK(quotas.take_arena(1000, 8 * kMiB, 8 * kMiB).ok());
        CHECK(std::string(quotas.take_arena(1000, 5 * kMiB, 5 * kMiB).error().step) ==
              "quota of the user");
        CHECK(quotas.take_arena(1000, 4 * kMiB, 4 * kMiB).ok());
        CHECK(std::string(quotas.take_arena(1000, 0, 0).error().step) == "arenas of the user");
        CHECK(quotas.take_arena(1001, 8 * kMiB, 8 * kMiB).ok());
        quotas.give_arena(1000, 8 * kMiB);
        CHECK(quotas.bytes_of(1000) == 4 * kMiB);
    }

    TEST_CASE("an arena that grows counts with what it has, and is refused where it ends") {
        QuotaTable quotas(small());
        CHECK(quotas.take_arena(1000, 8 * kMiB, kMiB).ok());
        CHECK(quotas.take_arena(1000, 8 * kMiB, kMiB).ok());
        CHECK(quotas.bytes_of(1000) == 2 * kMiB);
        CHECK(quotas.grow_arena(1000, 7 * kMiB).ok());
        CHECK(std::string(quotas.grow_arena(1000, 4 * kMiB).error().step) == "quota of the user");
        CHECK_FALSE(quotas.grow_arena(1000, ~Bytes{0}).ok());
        CHECK(quotas.bytes_of(1000) == 9 * kMiB);
        quotas.resize_arena(1000, 7 * kMiB, 0);
        CHECK(quotas.bytes_of(1000) == 2 * kMiB);
    }

    TEST_CASE("an arena that could never be filled is refused at once") {
        Limits limits = small();
        limits.max_arena_bytes = 0;
        QuotaTable quotas(limits);
        CHECK(std::string(quotas.take_arena(1000, 13 * kMiB, kMiB).error().step) ==
              "quota of the user");
    }

    TEST_CASE("what the backend added is counted, and a sum near 2^64 does not wrap") {
        Limits limits = small();
        limits.max_arena_bytes = 0;
        QuotaTable quotas(limits);
        REQUIRE(quotas.take_arena(1000, kMiB, kMiB).ok());
        quotas.resize_arena(1000, kMiB, 2 * kMiB);
        CHECK(quotas.bytes_of(1000) == 2 * kMiB);
        CHECK_FALSE(quotas.take_arena(1000, ~Bytes{0}, ~Bytes{0}).ok());
        CHECK_FALSE(quotas.take_arena(1000, ~Bytes{0} - kMiB, ~Bytes{0} - kMiB).ok());
    }

    TEST_CASE("giving back more than was taken stays at zero") {
        QuotaTable quotas(small());
        quotas.give_session(1);
        quotas.give_arena(1, kMiB);
        CHECK(quotas.sessions() == 0);
        CHECK(quotas.bytes_of(1) == 0);
    }
}

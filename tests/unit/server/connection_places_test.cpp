#include "fabricd/server/connection_places.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

constexpr std::uint32_t kDaemon = 100;
constexpr std::uint32_t kAlice = 1000;
constexpr std::uint32_t kBob = 1001;

// How many places `uid` gets, one after the other.
int taken_by(ConnectionPlaces& places, std::uint32_t uid, bool says_hello) {
    int count = 0;
    for (; places.has_room(uid); ++count) {
        places.take(uid);
        if (says_hello) places.greeted(uid);
    }
    return count;
}

}  // namespace

TEST_SUITE("server.connection_places") {
    TEST_CASE("a user gets no more than its part, and of silent ones fewer") {
        ConnectionPlaces places({100, 10, 4, 2}, kDaemon);
        CHECK(taken_by(places, kAlice, false) == 4);
        places.greeted(kAlice);
        CHECK(places.has_room(kAlice));
        CHECK(taken_by(places, kBob, true) == 10);
        places.give_back(kBob, true);
        CHECK(places.has_room(kBob));
    }

    TEST_CASE("when users have filled all, root and the daemon's own user still get in") {
        ConnectionPlaces places({20, 10, 10, 3}, kDaemon);
        CHECK(taken_by(places, kAlice, true) == 10);
        CHECK(taken_by(places, kBob, false) == 10);
        CHECK_FALSE(places.has_room(1002));
        REQUIRE(places.has_room(kDaemon));
        places.take(kDaemon);
        CHECK(taken_by(places, 0, true) == 2);
        CHECK_FALSE(places.has_room(kDaemon));
        places.give_back(kDaemon, false);
        CHECK(places.has_room(kDaemon));
        CHECK_FALSE(places.has_room(1002));
    }
}

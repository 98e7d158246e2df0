#include "libfabricshm/client/turnstile.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <thread>

using namespace fabricshm;
using namespace std::chrono_literals;

TEST_SUITE("client.turnstile") {
    TEST_CASE("one turn at a time, and a turn that does not come ends at the deadline") {
        Turnstile turnstile;
        std::optional<Turnstile::Turn> first(turnstile.enter(kNoWait));
        CHECK(static_cast<bool>(*first));
        CHECK_FALSE(static_cast<bool>(turnstile.enter(kNoWait)));
        CHECK_FALSE(static_cast<bool>(turnstile.enter(Clock::now() + 1ms)));
        bool has_come = false;
        std::thread second(
            [&] { has_come = static_cast<bool>(turnstile.enter(Clock::now() + 60s)); });
        first.reset();
        second.join();
        CHECK(has_come);
        CHECK(static_cast<bool>(turnstile.enter(kNoWait)));
    }
}

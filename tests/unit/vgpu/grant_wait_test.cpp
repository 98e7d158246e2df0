#include "libfabricshm/vgpu/grant_wait.hpp"

#include <doctest/doctest.h>

TEST_SUITE_BEGIN("vgpu.grant_wait");

using namespace fabricshm;
using namespace fabricshm::cuda;
using namespace std::chrono_literals;

namespace {

const TimePoint kNow = TimePoint{} + 1h;

Limits limits(std::uint64_t wait_ms) {
    Limits made;
    made.serial = 7;
    made.quota_bytes = made.target_bytes = 1000;
    made.most_bytes = 5000;
    made.wait_ms = wait_ms;
    return made;
}

}  // namespace

TEST_CASE("an allocation waits as long as the daemon says, or the process's own variable") {
    CHECK(GrantWait().length(kNow, limits(0)) == 0s);
    CHECK(GrantWait().length(kNow, limits(1500)) == 1500ms);
    CHECK(GrantWait(0s).length(kNow, limits(1500)) == 0s);
    CHECK(GrantWait(3s).length(kNow, limits(0)) == 3s);
    CHECK(GrantWait().length(kNow, limits(~std::uint64_t{0})) == kMaxGrantWait);
}

TEST_CASE("after a wait in vain there is none for fifteen times as long, or until limits change") {
    GrantWait wait;
    wait.was_in_vain(kNow, 2s, limits(2000));
    CHECK(wait.length(kNow, limits(2000)) == 0s);
    CHECK(wait.length(kNow + 29s, limits(2000)) == 0s);
    CHECK(wait.length(kNow + 30s, limits(2000)) == 2s);
    Limits changed = limits(2000);
    ++changed.serial;
    CHECK(wait.length(kNow, changed) == 2s);
}

TEST_CASE("what the quota can become counts only for those that wait for it") {
    CHECK(GrantWait().most_bytes(limits(2000)) == 5000);
    CHECK(GrantWait().most_bytes(limits(0)) == 1000);
    Limits of_an_older_daemon = limits(0);
    of_an_older_daemon.most_bytes = 0;
    CHECK(GrantWait(1s).most_bytes(of_an_older_daemon) == 1000);
}

TEST_CASE("the variable is a time with a unit, and anything else is nothing") {
    CHECK(grant_wait_from("500ms") == std::optional<Duration>(500ms));
    CHECK(grant_wait_from("0s") == std::optional<Duration>(0s));
    CHECK(grant_wait_from("20min") == std::optional<Duration>(kMaxGrantWait));
    for (const char* text : {"", "2", "-1s", "soon"}) CHECK(!grant_wait_from(text));
    CHECK(!grant_wait_from(nullptr));
}

TEST_SUITE_END();

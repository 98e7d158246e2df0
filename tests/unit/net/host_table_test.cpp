#include "fabricd/net/host_table.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

constexpr BootTime kStart{1000s};
constexpr fabricshm::Duration kGrace = 6s;

HostTable empty_table() {
    HostTable table;
    table.grace = kGrace;
    return table;
}

HostRecord record_of(Incarnation incarnation, std::uint64_t boot, std::uint64_t machine = 1) {
    return {incarnation, machine, boot, 0, "", ""};
}

HostState state_in(const HostTable& table, Incarnation incarnation) {
    const HostLife* life = find_life(table, "a", incarnation);
    REQUIRE(life != nullptr);
    return life->state;
}

/// Host a, incarnation 5 of boot 1, lost at kStart + kGrace.
HostTable with_lost_host() {
    HostTable table = empty_table();
    note_record(table, "a", record_of(5, 1), kStart);
    note_deletion(table, "a", 5, kStart);
    elapse(table, kStart + kGrace);
    REQUIRE(state_in(table, 5) == HostState::kLost);
    return table;
}

}  // namespace

TEST_SUITE("net.host_table") {
    TEST_CASE("a host whose record goes is suspect until its grace has passed, and then lost") {
        HostTable table = empty_table();
        note_record(table, "a", record_of(5, 1), kStart);
        CHECK(state_of(table.hosts["a"]) == HostState::kUp);
        CHECK(next_change(table) == BootTime::max());
        const auto changes = note_deletion(table, "a", 5, kStart + 1s);
        REQUIRE(changes.size() == 1);
        CHECK(changes[0].to == HostState::kSuspect);
        CHECK(next_change(table) == kStart + 1s + kGrace);
        CHECK(elapse(table, kStart + 1s + kGrace - 1ns).empty());
        CHECK(elapse(table, kStart + 1s + kGrace).size() == 1);
        CHECK(state_in(table, 5) == HostState::kLost);
        CHECK(elapse(table, kStart + 1h).empty());
    }

    TEST_CASE("a host with a longer lease has a longer grace") {
        HostTable table = empty_table();
        HostRecord record = record_of(5, 1);
        record.ttl_ms = 20000;
        note_record(table, "a", record, kStart);
        note_deletion(table, "a", 5, kStart);
        CHECK(elapse(table, kStart + 20999ms).empty());
        CHECK(elapse(table, kStart + 21s).size() == 1);
    }

    TEST_CASE("only a fenced incarnation's bytes may be granted, and none of an unknown one") {
        HostTable table = with_lost_host();
        CHECK_FALSE(may_grant_bytes_of(table, "a", 5));
        CHECK_FALSE(may_grant_bytes_of(table, "a", 4));
        CHECK_FALSE(may_grant_bytes_of(table, "b", 5));
        note_fence(table, "a", 5, {true, "b", "command", 0, 0}, kStart);
        CHECK(may_grant_bytes_of(table, "a", 5));
        CHECK(find_life(table, "a", 5)->how == "command");
    }

    TEST_CASE("the same boot that comes back leaves the incarnation before unfenced") {
        HostTable table = with_lost_host();
        note_record(table, "a", record_of(9, 1), kStart + 20s);
        CHECK(state_of(table.hosts["a"]) == HostState::kBack);
        CHECK_FALSE(may_grant_bytes_of(table, "a", 5));
        note_fence(table, "a", 5, {true, "a", "self", 0, 0}, kStart);
        CHECK(state_of(table.hosts["a"]) == HostState::kUp);
        CHECK_FALSE(may_grant_bytes_of(table, "a", 9));
    }

    TEST_CASE("another boot of the same machine fences all incarnations before") {
        HostTable table = with_lost_host();
        note_record(table, "a", record_of(9, 2), kStart + 20s);
        CHECK(state_in(table, 5) == HostState::kFenced);
        CHECK(find_life(table, "a", 5)->how == "boot");
        CHECK(state_of(table.hosts["a"]) == HostState::kUp);
    }

    TEST_CASE("another machine of the same name proves nothing") {
        HostTable table = with_lost_host();
        note_record(table, "a", record_of(9, 2, 77), kStart + 20s);
        CHECK(state_in(table, 5) == HostState::kLost);
        HostTable unknown = empty_table();
        note_record(unknown, "a", record_of(5, 0, 0), kStart);
        note_record(unknown, "a", record_of(6, 3, 0), kStart);
        CHECK(state_in(unknown, 5) == HostState::kSuspect);
    }

    TEST_CASE("an incarnation that a newer one replaced unseen gets its grace, too") {
        HostTable table = empty_table();
        note_record(table, "a", record_of(5, 1), kStart);
        note_record(table, "a", record_of(8, 1), kStart + 1s);
        CHECK(state_in(table, 5) == HostState::kSuspect);
        elapse(table, kStart + 1s + kGrace);
        CHECK(state_in(table, 5) == HostState::kLost);
        CHECK(state_in(table, 8) == HostState::kUp);
    }

    TEST_CASE("an incarnation that is written again in time is up as before") {
        HostTable table = empty_table();
        note_record(table, "a", record_of(5, 1), kStart);
        note_deletion(table, "a", 5, kStart);
        note_record(table, "a", record_of(5, 1), kStart + 1s);
        CHECK(state_in(table, 5) == HostState::kUp);
        CHECK(elapse(table, kStart + 1h).empty());
    }

    TEST_CASE("lost and fenced are for good") {
        HostTable table = with_lost_host();
        CHECK(note_record(table, "a", record_of(5, 1), kStart + 20s).empty());
        CHECK(state_in(table, 5) == HostState::kLost);
        CHECK(note_deletion(table, "a", 5, kStart + 20s).empty());
        note_fence(table, "a", 5, {true, "b", "operator", 0, 0}, kStart);
        CHECK(note_fence(table, "a", 5, {false, "c", "lease", 0, 0}, kStart).empty());
        CHECK(note_record(table, "a", record_of(5, 1), kStart + 20s).empty());
        CHECK(state_in(table, 5) == HostState::kFenced);
    }

    TEST_CASE("old news of a host changes nothing") {
        HostTable table = empty_table();
        note_record(table, "a", record_of(9, 1), kStart);
        const auto version = table.version;
        CHECK(note_record(table, "a", record_of(5, 1), kStart).empty());
        CHECK(note_deletion(table, "a", 5, kStart).empty());
        CHECK(note_deletion(table, "b", 9, kStart).empty());
        CHECK(table.version == version);
    }

    TEST_CASE("incarnations of before this daemon are known by their fences, in their place") {
        HostTable table = empty_table();
        note_record(table, "a", record_of(9, 2), kStart);
        note_fence(table, "a", 5, {false, "b", "lease", 1, 2}, kStart);
        CHECK(state_in(table, 5) == HostState::kLost);
        CHECK(newest_life(table, "a")->number == 9);
        CHECK(state_of(table.hosts["a"]) == HostState::kBack);
        // With the boot that the fence names, a newer one of the host proves its end.
        note_record(table, "a", record_of(11, 3), kStart);
        CHECK(state_in(table, 5) == HostState::kFenced);
    }

    TEST_CASE("a daemon that starts later finds the proof of another boot as the others did") {
        HostTable table = empty_table();
        note_record(table, "a", record_of(9, 2), kStart);
        const auto changes = note_fence(table, "a", 5, {false, "b", "lease", 1, 1}, kStart);
        CHECK(state_in(table, 5) == HostState::kFenced);
        CHECK(find_life(table, "a", 5)->how == "boot");
        REQUIRE(changes.size() == 1);
        CHECK(changes[0].to == HostState::kFenced);
        CHECK(state_of(table.hosts["a"]) == HostState::kUp);
        // Of another machine, of one that is not known, or of a host that has no record: no proof.
        note_fence(table, "a", 6, {false, "b", "lease", 7, 1}, kStart);
        CHECK(state_in(table, 6) == HostState::kLost);
        note_fence(table, "a", 7, {false, "b", "lease", 0, 0}, kStart);
        CHECK(state_in(table, 7) == HostState::kLost);
        note_fence(table, "b", 5, {false, "a", "lease", 1, 1}, kStart);
        CHECK(find_life(table, "b", 5)->state == HostState::kLost);
    }

    TEST_CASE("a suspect that is up again leaves no other one overdue") {
        HostTable table = empty_table();
        for (const char* name : {"a", "b"}) {
            note_record(table, name, record_of(5, 1), kStart);
            note_deletion(table, name, 5, kStart + (name[0] == 'a' ? 0s : 2s));
        }
        note_record(table, "a", record_of(5, 1), kStart + 1s);
        CHECK(elapse(table, kStart + kGrace).empty());
        CHECK(elapse(table, kStart + kGrace + 2s - 1ns).empty());
        CHECK(elapse(table, kStart + kGrace + 2s).size() == 1);
        // And one that becomes a suspect again has its whole grace.
        note_deletion(table, "a", 5, kStart + 1min);
        CHECK(elapse(table, kStart + 1min + kGrace - 1ns).empty());
        CHECK(elapse(table, kStart + 1min + kGrace).size() == 1);
    }

    TEST_CASE("fenced incarnations are forgotten when there are many, others never") {
        HostTable table = empty_table();
        note_record(table, "a", record_of(1, 1), kStart);
        note_deletion(table, "a", 1, kStart);
        elapse(table, kStart + kGrace);
        for (Incarnation number = 2; number < 100; ++number) {
            note_record(table, "a", record_of(number, 1), kStart);
            note_fence(table, "a", number, {true, "a", "left", 0, 0}, kStart);
        }
        CHECK(table.hosts["a"].lives.size() <= 18);
        CHECK(state_in(table, 1) == HostState::kLost);
        CHECK(newest_life(table, "a")->number == 99);
    }

    TEST_CASE("a listed host stays listed") {
        HostTable table = empty_table();
        list_host(table, "a", kStart);
        list_host(table, "a", kStart);
        CHECK(table.hosts["a"].lives.size() == 1);
        CHECK(state_of(table.hosts["a"]) == HostState::kListed);
        CHECK(elapse(table, kStart + 1h).empty());
        CHECK_FALSE(may_grant_bytes_of(table, "a", 0));
    }
}

#include "fabricd/net/fence.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

constexpr BootTime kStart{1000s};
const FenceKey kKey{"a", 5};

HostTable with_lost_host() {
    HostTable table;
    note_record(table, "a", {5, 1, 1, 0, "", ""}, kStart);
    note_deletion(table, "a", 5, kStart);
    elapse(table, kStart);
    return table;
}

FenceTable following(const HostTable& hosts) {
    FenceTable fences;
    fences.has_command = true;
    follow(fences, hosts, kStart);
    return fences;
}

}  // namespace

TEST_SUITE("net.fence") {
    TEST_CASE("a lost incarnation's command runs, and only its success fences") {
        const HostTable hosts = with_lost_host();
        FenceTable fences = following(hosts);
        REQUIRE(next_to_run(fences, hosts, kStart) == kKey);
        note_claim(fences, kKey, true, kStart);
        CHECK_FALSE(next_to_run(fences, hosts, kStart));
        CHECK_FALSE(note_command(fences, kKey, 1, kStart));
        CHECK(fences.jobs.at(kKey).last_status == 1);
        REQUIRE(next_to_run(fences, hosts, kStart + kFirstFencePause) == kKey);
        note_claim(fences, kKey, true, kStart);
        CHECK(note_command(fences, kKey, 0, kStart));
        CHECK(fences.jobs.empty());
    }

    TEST_CASE("a command that fails is tried again after longer and longer pauses") {
        const HostTable hosts = with_lost_host();
        FenceTable fences = following(hosts);
        BootTime now = kStart;
        fabricshm::Duration before{};
        for (int attempt = 0; attempt < 20; ++attempt) {
            note_claim(fences, kKey, true, now);
            note_command(fences, kKey, 124, now);
            const auto pause = fences.jobs.at(kKey).next_attempt - now;
            CHECK(pause >= before);
            CHECK(pause <= kMaxFencePause);
            CHECK_FALSE(next_to_run(fences, hosts, now + pause - 1ns));
            CHECK(next_to_run(fences, hosts, now + pause));
            before = pause;
            now += pause;
        }
        CHECK(before == kMaxFencePause);
    }

    TEST_CASE("without a command it waits for a person") {
        const HostTable hosts = with_lost_host();
        FenceTable fences;
        follow(fences, hosts, kStart);
        CHECK(fences.jobs.size() == 1);
        CHECK_FALSE(next_to_run(fences, hosts, kStart + 1h));
    }

    TEST_CASE("a host that is back is not ended for what it was before") {
        HostTable hosts = with_lost_host();
        FenceTable fences = following(hosts);
        note_record(hosts, "a", {9, 1, 1, 0, "", ""}, kStart);
        follow(fences, hosts, kStart);
        CHECK(fences.jobs.count(kKey) == 1);
        CHECK_FALSE(next_to_run(fences, hosts, kStart + 1h));
    }

    TEST_CASE("another daemon's claim is respected, and asked for again later") {
        const HostTable hosts = with_lost_host();
        FenceTable fences = following(hosts);
        note_claim(fences, kKey, false, kStart);
        CHECK_FALSE(next_to_run(fences, hosts, kStart));
        CHECK(next_to_run(fences, hosts, kStart + kFirstFencePause) == kKey);
    }

    TEST_CASE("a job ends when something else fences, but not while its command runs") {
        HostTable hosts = with_lost_host();
        FenceTable fences = following(hosts);
        FenceTable running = fences;
        note_claim(running, kKey, true, kStart);
        note_fence(hosts, "a", 5, {true, "b", "operator", 0, 0}, kStart);
        follow(fences, hosts, kStart);
        follow(running, hosts, kStart);
        CHECK(fences.jobs.empty());
        CHECK(running.jobs.size() == 1);
        CHECK_FALSE(note_command(running, kKey, 3, kStart));
        follow(running, hosts, kStart);
        CHECK(running.jobs.empty());
    }

    TEST_CASE("a job whose command fails after something else fenced is dropped") {
        HostTable hosts = with_lost_host();
        FenceTable fences = following(hosts);
        note_claim(fences, kKey, true, kStart);
        note_fence(hosts, "a", 5, {true, "b", "operator", 0, 0}, kStart);
        follow(fences, hosts, kStart);
        CHECK(fences.jobs.size() == 1);
        CHECK_FALSE(note_command(fences, kKey, 1, kStart));
        follow(fences, hosts, kStart);
        CHECK(fences.jobs.empty());
    }

    TEST_CASE("one command at a time") {
        HostTable hosts = with_lost_host();
        note_fence(hosts, "b", 6, {false, "c", "lease", 0, 0}, kStart);
        FenceTable fences = following(hosts);
        REQUIRE(fences.jobs.size() == 2);
        note_claim(fences, *next_to_run(fences, hosts, kStart), true, kStart);
        CHECK_FALSE(next_to_run(fences, hosts, kStart + 1h));
    }
}

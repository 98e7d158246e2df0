#include "fabricd/net/clone_watch.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

constexpr BootTime kStart{1000s};
constexpr fabricshm::Duration kTtl = 5s;

HostRecord record_of(Incarnation incarnation, std::uint64_t machine, std::uint64_t boot) {
    return {incarnation, machine, boot, 3, "emu", "", 5000};
}

const HostRecord kMine = record_of(0, 7, 100);

}  // namespace

TEST_SUITE("net.clone_watch") {
    TEST_CASE(
        "another boot of this machine id that outlives two leases is a clone, and said once") {
        CloneWatch watch;
        const HostRecord other = record_of(50, 7, 200);
        CHECK_FALSE(note_refusal(watch, kMine, other, kTtl, kStart));
        CHECK_FALSE(note_refusal(watch, kMine, other, kTtl, kStart + 10s));
        CHECK(note_refusal(watch, kMine, other, kTtl, kStart + 10s + 1ms));
        CHECK_FALSE(note_refusal(watch, kMine, other, kTtl, kStart + 20s));
        CHECK(watch.is_found);
    }

    TEST_CASE("another machine, and another daemon of this boot, are no clones") {
        for (const HostRecord& other :
             {record_of(50, 8, 200), record_of(50, 7, 100), record_of(50, 7, 0)}) {
            CloneWatch watch;
            CHECK_FALSE(note_refusal(watch, kMine, other, kTtl, kStart));
            CHECK_FALSE(note_refusal(watch, kMine, other, kTtl, kStart + 1h));
        }
        CloneWatch watch;
        const HostRecord nameless = record_of(0, 0, 100);
        CHECK_FALSE(note_refusal(watch, nameless, record_of(50, 0, 200), kTtl, kStart));
        CHECK_FALSE(note_refusal(watch, nameless, record_of(50, 0, 200), kTtl, kStart + 1h));
    }

    TEST_CASE("the time begins again with each incarnation that is in the way") {
        CloneWatch watch;
        CHECK_FALSE(note_refusal(watch, kMine, record_of(50, 7, 200), kTtl, kStart));
        CHECK_FALSE(note_refusal(watch, kMine, record_of(51, 7, 200), kTtl, kStart + 9s));
        CHECK_FALSE(note_refusal(watch, kMine, record_of(51, 7, 200), kTtl, kStart + 18s));
        CHECK(note_refusal(watch, kMine, record_of(51, 7, 200), kTtl, kStart + 20s));
    }
}

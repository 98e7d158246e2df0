#include "fabricd/pool/snapshot_walk.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/registry_host.hpp"

using namespace test_support;

namespace {

constexpr Bytes kPage = 4096;

proto::Region loss(ArenaId arena, std::uint64_t offset, Bytes bytes) {
    proto::Region told{};
    told.arena_id = raw(arena);
    told.offset = offset;
    told.bytes = bytes;
    return told;
}

using Ids = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

/// Everything in a snapshot, by its ids and places.
struct Contents {
    explicit Contents(const Snapshot& all) {
        for (const auto& view : all.sessions) sessions.emplace_back(view.id, view.bytes_owned);
        for (const auto& view : all.arenas) arenas.emplace_back(view.id, view.bytes_quarantined);
        for (const auto& view : all.regions) regions.emplace_back(view.arena_id, view.offset);
        for (const auto& view : all.groups) groups.emplace_back(view.arena_id, view.id);
        for (const auto& view : all.shards) shards.emplace_back(view.arena_id, view.id);
    }
    bool operator==(const Contents&) const = default;
    Ids sessions, arenas, regions, groups, shards;
};

struct Fixture {
    Fixture() {
        alice = host.session(kAlice);
        bob = host.session(kBob);
        for (const char* name : {"a", "b", "c"}) {
            arenas.push_back(host.arena(alice, name, 4096 * kPage));
            host.arena(bob, name, 4096 * kPage);
            for (int i = 0; i < 4; ++i)
                regions.push_back(host.region(alice, arenas.back()).value());
        }
        host.together({alice, bob}, arenas[0], "ring");
        host.together({alice, bob}, arenas[2], "ring");
        host.join(alice, arenas[1], "forming", -1, 3);
        const auto freed = host.region(alice, arenas[1], 2 * kPage).value();
        REQUIRE(host.registry->note_lost(alice, loss(arenas[1], freed.offset, kPage)).ok());
        REQUIRE(host.registry->free_region(alice, arenas[1], RegionId{freed.region_id}).ok());
        REQUIRE(host.registry->note_lost(alice, loss(arenas[1], regions[4].offset, kPage)).ok());
        proto::Shard body{};
        body.header.arena_id = raw(arenas[2]);
        copy_name(body.name, "s");
        body.dtype = 5;
        body.ndim = 1;
        body.shape[0] = 20000;
        REQUIRE(host.registry->create_shard(alice, body).ok());
    }
    RegistryHost host;
    SessionId alice = SessionId::kNone;
    SessionId bob = SessionId::kNone;
    std::vector<ArenaId> arenas;
    std::vector<proto::Region> regions;
};

std::ptrdiff_t times(const Snapshot& all, const proto::Region& region) {
    return std::count_if(all.regions.begin(), all.regions.end(), [&](const RegionView& view) {
        return view.arena_id == region.arena_id && view.id == region.region_id &&
               view.generation == region.generation;
    });
}

}  // namespace

TEST_SUITE("pool.snapshot_walk") {
    TEST_CASE("a snapshot in pieces of any size is the whole one, and its totals are counted") {
        const Fixture fixture;
        const Registry& books = *fixture.host.registry;
        const Snapshot whole = books.snapshot(kNow);
        CHECK(whole.totals.sessions == 2);
        CHECK(whole.totals.sessions_connected == 2);
        CHECK(whole.totals.arenas == 3);
        CHECK(whole.totals.groups == whole.groups.size());
        // Two pieces of lost memory of no region are no regions.
        CHECK(whole.regions.size() == whole.totals.regions + 1);
        for (int most : {1, 2, 3, 5, 8, 100}) {
            CAPTURE(most);
            SnapshotWalk walk{SnapshotParts::all()};
            int pieces = 1;
            while (!books.look_on(walk, most, kNow)) ++pieces;
            CHECK(Contents(walk.all) == Contents(whole));
            CHECK((pieces > 1) == (most < 100));
        }
    }

    TEST_CASE("what lives all the while is there once, whatever comes and goes in between") {
        Fixture fixture;
        Registry& books = *fixture.host.registry;
        SnapshotWalk walk{SnapshotParts::all()};
        std::size_t next = 0;
        // The second and the third region of each arena stay.
        while (!books.look_on(walk, 1, kNow)) {
            if (next % 4 == 1) next += 2;
            if (next < fixture.regions.size()) {
                const proto::Region gone = fixture.regions[next++];
                REQUIRE(books
                            .free_region(fixture.alice, ArenaId{gone.arena_id},
                                         RegionId{gone.region_id})
                            .ok());
            }
            (void)fixture.host.region(fixture.alice, fixture.arenas[next % 3]);
            if (next == 7) REQUIRE(books.close_arena({fixture.bob, 900}, fixture.arenas[0]).ok());
        }
        for (std::size_t i = 0; i < fixture.regions.size(); ++i) {
            if (i % 4 == 1 || i % 4 == 2) CHECK(times(walk.all, fixture.regions[i]) == 1);
        }
    }

    TEST_CASE("only what is asked for is looked at, and a session at its end counts no more") {
        Fixture fixture;
        Registry& books = *fixture.host.registry;
        SnapshotWalk none{SnapshotParts{}};
        CHECK(books.look_on(none, 1, kNow));
        CHECK(none.all.totals.regions > 12);
        CHECK(none.all.regions.empty());
        SnapshotWalk one{SnapshotParts{.regions = true, .arena_id = raw(fixture.arenas[0])}};
        CHECK(books.look_on(one, 100, kNow));
        CHECK(one.all.regions.size() == 4);
        books.connection_lost(fixture.bob, kNow);
        CHECK(books.snapshot(kNow).totals.sessions_connected == 1);
        books.end_session(fixture.bob, "test");
        CHECK(books.snapshot(kNow).totals.sessions == 1);
        CHECK(books.snapshot(kNow).totals.sessions_connected == 1);
    }
}

#include <doctest/doctest.h>

#include "tests/support/books_host.hpp"

using namespace test_support;

TEST_SUITE("pool.regions") {
    TEST_CASE("regions belong to one session, are seen by all of the arena, and go with it") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        host.arena(bob);
        const auto region = host.region(alice, arena, 5000).value();
        CHECK(region.bytes == 8192);
        CHECK(host.registry->open_region(bob, region).value().offset == region.offset);
        const RegionId id{region.region_id};
        CHECK(host.registry->free_region(bob, arena, id).error().code == Errc::kDenied);
        host.registry->end_session(alice, "test");
        CHECK(host.registry->open_region(bob, region).error().code == Errc::kNotFound);
        CHECK(host.registry->free_region(bob, arena, id).error().code == Errc::kNotFound);
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == 0);
        // The bytes are free at once; the id rests, so that an old reference finds nothing.
        CHECK(host.region(bob, arena, 5000).value().offset == region.offset);
        CHECK(host.registry->open_region(bob, region).error().code == Errc::kNotFound);
    }

    TEST_CASE("a full arena and too many regions are refused without a trace") {
        Limits limits;
        limits.max_regions_per_session = 3;
        RegistryHost host(limits);
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice, "job", 8 * 4096);
        CHECK(host.region(alice, arena, 9 * 4096).error().code == Errc::kNoMemory);
        CHECK(host.region(alice, arena, ~Bytes{0}).error().code == Errc::kNoMemory);
        for (int i = 0; i < 3; ++i) CHECK(host.region(alice, arena).ok());
        CHECK(std::string(host.region(alice, arena).error().step) == "regions of the session");
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a session that opens a tensor waits until it is made, or until the timeout") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        host.arena(bob);
        const auto body = RegistryHost::tensor_body(arena, "w", 5000);
        REQUIRE(host.registry->open_tensor({bob, 71}, body, kNow).ok());
        REQUIRE(host.registry->open_tensor({alice, 72}, body, kNow).ok());
        const auto late = RegistryHost::tensor_body(arena, "never", 1000);
        REQUIRE(host.registry->open_tensor({bob, 73}, late, kNow).ok());
        CHECK_FALSE(host.answered(71));

        const auto tensor = host.tensor(alice, arena, "w").value();
        CHECK(tensor.region.bytes == 4096);
        const Answer found = host.answer(71);
        CHECK(std::get<proto::Tensor>(found.body).region.offset == tensor.region.offset);
        CHECK(std::get<proto::Tensor>(found.body).owner_pid == kAlice.pid);
        CHECK(host.answer(72).error.code == Errc::kOk);
        host.registry->expire(kNow + 1s);
        CHECK(host.answer(73).error.code == Errc::kTimeout);
        CHECK(host.tensor(bob, arena, "w").error().code == Errc::kExists);
    }

    TEST_CASE("a tensor's name is free again when the tensor or its owner is gone") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        host.arena(bob);
        const auto first = host.tensor(alice, arena, "w").value();
        CHECK(host.registry->free_region(alice, arena, RegionId{first.region.region_id}).ok());
        REQUIRE(host.tensor(alice, arena, "w").ok());
        host.registry->end_session(alice, "test");
        CHECK(host.tensor(bob, arena, "w").ok());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a session has only so many waits, and they end with it") {
        Limits limits;
        limits.max_waits_per_session = 2;
        RegistryHost host(limits);
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        const auto body = RegistryHost::tensor_body(arena, "w", 5000);
        CHECK(host.registry->open_tensor({alice, 71}, body, kNow).ok());
        CHECK(host.registry->open_tensor({alice, 72}, body, kNow).ok());
        CHECK(host.registry->open_tensor({alice, 73}, body, kNow).error().code == Errc::kNoMemory);
        host.registry->connection_lost(alice, kNow);
        CHECK_FALSE(host.answered(71));
        CHECK(host.registry->next_deadline() == kNow + 10s);
    }

    TEST_CASE("closing the arena answers what is still waiting in it") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        const auto body = RegistryHost::tensor_body(arena, "w", 5000);
        REQUIRE(host.registry->open_tensor({alice, 71}, body, kNow).ok());
        REQUIRE(host.registry->close_arena({alice, 900}, arena).ok());
        CHECK(host.answer(71).error.code == Errc::kClosed);
    }

    TEST_CASE("a region that cannot be written down leaves no trace") {
        BooksHost host;
        Session& alice = host.session();
        Arena& arena = host.arena({alice.id});
        host.file.broken = true;
        CHECK_FALSE(host.regions.create(alice.id, arena, 4096).ok());
        CHECK(alice.regions == 0);
        CHECK(arena.regions.empty());
        CHECK(arena.space.bytes_used() == 0);
        CHECK(host.books.problems().empty());
    }

    TEST_CASE("regions of a session that a group keeps from others rest until the group is over") {
        BooksHost host;
        Session& alice = host.session();
        Arena& arena = host.arena({alice.id});
        const RegionId region = host.regions.make(alice, arena, 4096, std::nullopt).value();
        arena.dangers[alice.id] = 1;
        CHECK(host.regions.reclaim_some(alice, arena, 5) == 4);
        CHECK(arena.leases.find(region)->state == LeaseState::kQuarantined);
        CHECK(arena.bytes_quarantined == 4096);
        CHECK(alice.bytes_owned == 0);
        arena.dangers.clear();
        host.regions.sweep_quarantine(arena, {alice.id});
        CHECK(arena.regions.empty());
        CHECK(host.books.problems().empty());
    }
}

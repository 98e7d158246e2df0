#include <doctest/doctest.h>

#include "tests/support/books_host.hpp"

using namespace test_support;

namespace {

// Whether a session that hears of the region has to wait until it is out of this host's caches.
bool waits(const RegistryHost& host, SessionId session, const proto::Region& region) {
    return host.registry->cached_grants().take(session, region).has_value();
}

}  // namespace

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
        const auto second = host.tensor(alice, arena, "w").value();
        // A request for one that had the number before, asked again after its answer was lost.
        const auto again = host.registry->free_region(
            alice, arena, RegionId{second.region.region_id}, second.region.generation + 1);
        REQUIRE(!again.ok());
        CHECK(again.error().code == Errc::kNotFound);
        host.registry->end_session(alice, "test");
        CHECK(host.tensor(bob, arena, "w").ok());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE(
        "a lasting tensor goes over to another session of its arena, and ends with the last") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const SessionId outside = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        host.arena(bob);
        host.arena(outside, "other");
        auto body = RegistryHost::tensor_body(arena, "w", 5000);
        body.flags = proto::kTensorLasting;
        const auto tensor = host.registry->create_tensor(alice, body).value();
        CHECK(tensor.flags == proto::kTensorLasting);
        REQUIRE(host.tensor(alice, arena, "mortal").ok());
        host.registry->end_session(alice, "test");
        CHECK(host.registry->problems().empty());
        // Every reference to it stays good: region, generation and place are the same.
        REQUIRE(host.registry->open_tensor({bob, 71}, body, kNow).ok());
        const auto found = std::get<proto::Tensor>(host.answer(71).body);
        CHECK(found.region.region_id == tensor.region.region_id);
        CHECK(found.region.generation == tensor.region.generation);
        CHECK(found.region.offset == tensor.region.offset);
        CHECK(found.owner_pid == kBob.pid);
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == 4096);

        // A restarted daemon knows it, too, and what becomes of it.
        host.restart();
        REQUIRE(host.registry->problems().empty());
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == 4096);
        host.registry->end_session(bob, "test");
        CHECK(host.registry->problems().empty());
        for (const auto& left : host.registry->snapshot(kNow).arenas) CHECK(left.name != "job");
    }

    TEST_CASE("a tensor is made lasting by its owner, and goes with it before that") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        host.arena(bob);
        REQUIRE(host.tensor(alice, arena, "early").ok());
        REQUIRE(host.tensor(alice, arena, "late").ok());
        auto body = RegistryHost::tensor_body(arena, "late");
        body.flags = proto::kTensorLasting;
        CHECK(host.registry->create_tensor(bob, body).error().code == Errc::kExists);
        host.journal.broken = true;
        CHECK_FALSE(host.registry->create_tensor(alice, body).ok());
        host.journal.broken = false;
        REQUIRE(host.registry->create_tensor(alice, body).ok());
        CHECK(host.registry->create_tensor(alice, body).ok());
        host.restart();
        REQUIRE(host.restored.ok());
        host.registry->end_session(alice, "test");
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == 4096);
        CHECK(host.tensor(bob, arena, "early").ok());
        CHECK(host.tensor(bob, arena, "late").error().code == Errc::kExists);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a name that is taken asks for no room, and one whose owner goes does") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        host.arena(bob);
        CHECK_FALSE(host.registry->has_tensor(arena, "w"));
        REQUIRE(host.tensor(alice, arena, "w").ok());
        CHECK(host.registry->has_tensor(arena, "w"));
        CHECK_FALSE(host.registry->has_tensor(ArenaId{77}, "w"));
        host.registry->end_session(alice, "test");
        CHECK_FALSE(host.registry->has_tensor(arena, "w"));
    }

    TEST_CASE("a lasting tensor is freed by any session of its arena, and by no other") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const SessionId outside = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        host.arena(bob);
        auto body = RegistryHost::tensor_body(arena, "w", 5000);
        body.flags = proto::kTensorLasting;
        const auto tensor = host.registry->create_tensor(alice, body).value();
        const RegionId region{tensor.region.region_id};
        CHECK_FALSE(host.registry->free_region(outside, arena, region).ok());
        CHECK(host.registry->free_region(bob, arena, region).ok());
        CHECK(host.registry->problems().empty());
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == 0);
    }

    TEST_CASE("lasting tensors of a session with many go over in slices, and no byte is lost") {
        Limits limits;
        limits.freed_at_once = 3;
        RegistryHost host(limits);
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        host.arena(bob);
        for (int i = 0; i < 10; ++i) {
            auto body = RegistryHost::tensor_body(arena, ("w" + std::to_string(i)).c_str());
            body.flags = proto::kTensorLasting;
            REQUIRE(host.registry->create_tensor(alice, body).ok());
        }
        host.registry->end_session(alice, "test");
        // Asked for by name before its turn has come.
        const auto last = RegistryHost::tensor_body(arena, "w9", 5000);
        REQUIRE(host.registry->open_tensor({bob, 71}, last, kNow).ok());
        CHECK(std::get<proto::Tensor>(host.answer(71).body).owner_pid == kBob.pid);
        CHECK(host.registry->problems().empty());
        for (int turn = 0; turn < 10; ++turn) host.registry->expire(kNow);
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_used == 10 * 4096);
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
        arena.dangers.groups[alice.id] = 1;
        CHECK(host.regions.reclaim_some(alice, arena, 5) == 4);
        CHECK(arena.leases.find(region)->state == LeaseState::kQuarantined);
        CHECK(arena.bytes_quarantined == 4096);
        CHECK(alice.bytes_owned == 0);
        arena.dangers.groups.clear();
        host.regions.sweep_quarantine(arena, {alice.id});
        CHECK(arena.regions.empty());
        CHECK(host.books.problems().empty());
    }

    TEST_CASE("what this host's processes had leaves its caches once, before another host has it") {
        RegistryHost host;
        host.caches_apart = true;
        host.renew();
        const SessionId alice = host.session(kAlice);
        const SessionId far = host.session(kFarBob);
        const ArenaId arena = host.arena(alice);
        host.arena(far);
        const auto fresh = host.region(far, arena).value();
        CHECK_FALSE(waits(host, far, fresh));  // it had no owner before
        const auto own = host.region(alice, arena, 3 * 4096).value();
        CHECK_FALSE(waits(host, alice, own));
        REQUIRE(host.registry->free_region(alice, arena, RegionId{own.region_id}).ok());
        const auto first = host.region(far, arena).value();
        CHECK(first.offset == own.offset);
        const auto range = host.registry->cached_grants().take(far, first);
        REQUIRE(range);
        CHECK(*range == OpenRange{arena, first.offset, 4096});
        CHECK_FALSE(waits(host, far, first));
        CHECK(waits(host, far, host.region(far, arena).value()));

        // It could not be written out: then it is no region, and the next one there waits again.
        host.registry->cached_grants().put_back(first);
        REQUIRE(host.registry->free_region(far, arena, RegionId{first.region_id}).ok());
        const auto again = host.region(far, arena).value();
        CHECK(again.offset == first.offset);
        CHECK(waits(host, far, again));
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a process of this host that ends may have stored anywhere in the arena") {
        for (const bool closes : {false, true}) {
            RegistryHost host;
            host.caches_apart = true;
            host.renew();
            const SessionId alice = host.session(kAlice);
            const SessionId far = host.session(kFarBob);
            const ArenaId arena = host.arena(alice);
            host.arena(far);
            CHECK_FALSE(waits(host, far, host.region(far, arena).value()));
            if (closes) CHECK(host.registry->close_arena({alice, 9}, arena).value());
            if (!closes) host.registry->end_session(alice, "test");
            CHECK(waits(host, far, host.region(far, arena).value()));
        }
    }

    TEST_CASE("a daemon that is started again does not know what had left the caches") {
        RegistryHost host;
        host.caches_apart = true;
        host.renew();
        const SessionId far = host.session(kFarBob);
        const ArenaId arena = host.arena(far);
        CHECK_FALSE(waits(host, far, host.region(far, arena).value()));
        host.restart();
        REQUIRE(host.registry->found_in_pool(arena, NotedWork::make(64 * 4096)));
        REQUIRE(host.registry->resume_session(far, kFarBob, kToken).ok());
        CHECK(waits(host, far, host.region(far, arena).value()));
    }

    TEST_CASE("nothing waits where the caches of all hosts are one") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId far = host.session(kFarBob);
        const ArenaId arena = host.arena(alice);
        host.arena(far);
        const auto own = host.region(alice, arena).value();
        REQUIRE(host.registry->free_region(alice, arena, RegionId{own.region_id}).ok());
        CHECK_FALSE(waits(host, far, host.region(far, arena).value()));
    }
}

// Requests to commit all of an arena: what counts, what is refused, and what goes on meanwhile.

#include "fabricd/pool/commits.hpp"

#include <doctest/doctest.h>

#include "fabricd/server/requests.hpp"
#include "tests/support/registry_host.hpp"

using namespace test_support;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::kArenaStep;

namespace {

constexpr Bytes kArenaBytes = 10 * kArenaStep;
constexpr Bytes kPiece = 4 * kArenaStep;  // what is committed before others have their turn
const Error kFull{Errc::kNoMemory, 0, "pool is full"};

struct Host : RegistryHost {
    explicit Host(const Limits& limits = {}, Bytes step = kArenaStep) : RegistryHost(limits) {
        first_step = step;
        renew();
        alice = session(kAlice);
        bob = session(kBob);
        id = arena(alice, "job", kArenaBytes);
        REQUIRE(arena(bob, "job", 0) == id);
    }

    // As a client asks: the id of a request that waits, or the reply.
    struct Asked {
        std::uint64_t id = 0;
        std::optional<proto::Message> reply;
    };
    Asked send(SessionId from, proto::Message request) {
        request.header.request_id = ++requests;
        Asked asked{requests, serve(*registry, from, request, {}, kNow)};
        if (asked.reply) REQUIRE(proto::check_reply(*asked.reply, sizeof *asked.reply).ok());
        return asked;
    }
    Asked commit(SessionId from, ArenaId which) {
        proto::Message request = proto::make_request(proto::Type::kArenaCommit, 1);
        request.arena.arena_id = raw(which);
        return send(from, request);
    }
    Asked commit(SessionId from) { return commit(from, id); }
    Asked ask_region(SessionId from, Bytes bytes) {
        proto::Message request = proto::make_request(proto::Type::kRegionCreate, 1);
        request.region.arena_id = raw(id);
        request.region.bytes = bytes;
        return send(from, request);
    }

    // All that was asked of the pool is done, and there is room for `room` bytes of it.
    void grow(Bytes room = ~Bytes{0}) {
        while (work.grown_done < work.grown.size()) {
            const Bytes more = work.grown[work.grown_done].to - committed();
            work.finish_growth(more <= room ? Result<void>() : Result<void>(kFull));
            if (more <= room) room -= more;
        }
    }
    Bytes committed() {
        const auto all = registry->snapshot(kNow).arenas;
        return all.empty() ? 0 : all.front().bytes_committed;
    }
    Bytes used() { return registry->snapshot(kNow).arenas.at(0).bytes_used; }
    Bytes charged() { return registry->quotas_of("", kAlice.uid, kNow).user.used_bytes; }
    bool is_done(const Asked& asked) { return answer(asked.id).error.code == Errc::kOk; }

    SessionId alice;
    SessionId bob;
    ArenaId id;
};

Limits with_quota(Bytes bytes) {
    Limits limits;
    limits.user_quota_bytes = bytes;
    return limits;
}

Errc code_of(const std::optional<proto::Message>& reply) {
    return reply ? proto::error_of(reply->header, "test").code : Errc::kOk;
}

}  // namespace

TEST_SUITE("pool.commits") {
    TEST_CASE("all of an arena is committed, piece by piece, and no region is taken") {
        Host host;
        const auto asked = host.commit(host.alice);
        CHECK_FALSE(asked.reply);
        REQUIRE(host.work.grown.size() == 1);
        CHECK(host.work.grown[0].to == kArenaStep + kPiece);
        CHECK(host.work.grown[0].need == host.work.grown[0].to);
        host.work.finish_growth();
        CHECK_FALSE(host.answered(asked.id));
        CHECK(host.used() == 0);
        host.grow();
        CHECK(host.is_done(asked));
        CHECK(host.committed() == kArenaBytes);
        CHECK(host.charged() == kArenaBytes);
        CHECK(host.used() == 0);
        CHECK(host.region(host.bob, host.id, kArenaBytes).ok());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("two that ask wait for the same growth, and one that asks later for none") {
        Host host;
        const auto first = host.commit(host.alice);
        const auto second = host.commit(host.bob);
        CHECK(host.work.grown.size() == 1);
        host.grow();
        const std::size_t pieces = host.work.grown.size();
        CHECK(host.is_done(first));
        CHECK(host.is_done(second));
        const auto again = host.commit(host.bob);
        CHECK(host.is_done(again));
        CHECK(host.work.grown.size() == pieces);
        CHECK(host.charged() == kArenaBytes);
    }

    TEST_CASE("an arena that is committed whole when it is made has nothing to do") {
        Host host({}, 0);
        const auto asked = host.commit(host.alice);
        CHECK(host.is_done(asked));
        CHECK(host.work.grown.empty());
    }

    TEST_CASE("regions that are there stay, and others are granted meanwhile") {
        Host host;
        const auto before = host.region(host.bob, host.id, kArenaStep / 2);
        REQUIRE(before.ok());
        const auto asked = host.commit(host.alice);
        const auto fits = host.ask_region(host.bob, kArenaStep / 4);
        REQUIRE(fits.reply);
        CHECK(fits.reply->header.status == 0);
        // What needs more waits for this piece, and is not refused.
        const auto waits = host.ask_region(host.bob, 2 * kArenaStep);
        CHECK_FALSE(waits.reply);
        host.work.finish_growth();
        CHECK(host.answer(waits.id).error.code == Errc::kOk);
        CHECK_FALSE(host.answered(asked.id));
        host.grow();
        CHECK(host.is_done(asked));
        CHECK(host.used() == 2 * kArenaStep + 3 * kArenaStep / 4);
        REQUIRE(host.registry->free_region(host.bob, host.id, RegionId{before->region_id}).ok());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a request that needs more than the next piece goes first") {
        Host host;
        const auto asked = host.commit(host.alice);
        const auto large = host.ask_region(host.bob, 7 * kArenaStep);
        CHECK_FALSE(large.reply);
        host.work.finish_growth();
        REQUIRE(host.work.grown.size() == 2);
        CHECK(host.work.grown[1].need == 7 * kArenaStep);
        host.grow();
        CHECK(host.answer(large.id).error.code == Errc::kOk);
        CHECK(host.is_done(asked));
        CHECK(host.committed() == kArenaBytes);
    }

    TEST_CASE("the quota of the user ends it, with what it admits committed and one reason") {
        Host host(with_quota(kArenaBytes));
        const ArenaId other = host.arena(host.alice, "other", 2 * kArenaStep);
        REQUIRE(other != ArenaId::kNone);
        const auto first = host.commit(host.alice);
        const auto second = host.commit(host.bob);
        host.grow();
        // A step less than all of it is left next to the other arena's first one.
        CHECK(host.committed() == kArenaBytes - kArenaStep);
        CHECK(host.charged() == kArenaBytes);
        for (const auto& asked : {first, second}) {
            const Answer refused = host.answer(asked.id);
            CHECK(refused.error.code == Errc::kNoMemory);
            CHECK(refused.reason.find("144 MiB of its 160 MiB committed") != std::string::npos);
            CHECK(refused.reason.find("limits.user_quota") != std::string::npos);
        }
        // Nothing more is taken by asking for it, and it is said at once.
        const std::size_t pieces = host.work.grown.size();
        CHECK(code_of(host.commit(host.bob).reply) == Errc::kNoMemory);
        CHECK(host.work.grown.size() == pieces);
        CHECK(host.charged() == kArenaBytes);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("what a full pool has is committed, and nothing is charged for the rest") {
        for (const Bytes room : {Bytes{0}, kArenaStep, 3 * kArenaStep, 5 * kArenaStep}) {
            Host host;
            const auto first = host.commit(host.alice);
            const auto second = host.commit(host.bob);
            host.grow(room);
            CHECK(host.committed() == kArenaStep + room);
            CHECK(host.charged() == kArenaStep + room);
            const Answer refused = host.answer(first.id);
            CHECK(refused.error.code == Errc::kNoMemory);
            CHECK(refused.reason.find("pool.capacity") != std::string::npos);
            CHECK(host.answer(second.id).error.code == Errc::kNoMemory);
            // Asked again, it is tried again.
            const auto again = host.commit(host.bob);
            host.grow();
            CHECK(host.is_done(again));
            CHECK(host.charged() == kArenaBytes);
            CHECK(host.registry->problems().empty());
        }
    }

    TEST_CASE("a request that needs less than a piece that was refused gets it") {
        Host host;
        const auto asked = host.commit(host.alice);
        const auto small = host.ask_region(host.bob, 2 * kArenaStep);
        CHECK_FALSE(small.reply);
        host.grow(2 * kArenaStep);
        CHECK(host.answer(small.id).error.code == Errc::kOk);
        CHECK(host.answer(asked.id).error.code == Errc::kNoMemory);
        CHECK(host.committed() == 3 * kArenaStep);
        CHECK(host.charged() == 3 * kArenaStep);
    }

    TEST_CASE("requests of others in a full pool do not keep it waiting for ever") {
        Host host;
        const auto asked = host.commit(host.alice);
        for (int i = 0; i < 10 && !host.answered(asked.id); ++i) {
            (void)host.ask_region(host.bob, 3 * kArenaStep);
            host.work.finish_growth(kFull);
        }
        CHECK(host.answer(asked.id).error.code == Errc::kNoMemory);
    }

    TEST_CASE("a growth for others that fails is no end of it") {
        Host host;
        const auto large = host.ask_region(host.bob, 9 * kArenaStep);
        CHECK_FALSE(large.reply);
        const auto asked = host.commit(host.alice);
        host.work.finish_growth(kFull);
        CHECK(host.answer(large.id).error.code == Errc::kNoMemory);
        CHECK_FALSE(host.answered(asked.id));
        host.grow();
        CHECK(host.is_done(asked));
    }

    TEST_CASE("a session commits no arena that it has not opened, and none that is not there") {
        Host host;
        const SessionId mallory = host.session(kMallory);
        CHECK(code_of(host.commit(mallory).reply) == Errc::kNotFound);
        CHECK(code_of(host.commit(host.alice, ArenaId{99}).reply) == Errc::kNotFound);
        CHECK(host.work.grown.empty());
    }

    TEST_CASE("a published arena is not committed so, by its maker nor by a reader") {
        Host host;
        const ArenaId cache = host.arena(host.alice, "cache", kArenaBytes, proto::kArenaPublish);
        REQUIRE(cache != ArenaId::kNone);
        REQUIRE(host.arena(host.bob, "cache", 0, proto::kArenaSubscribe) == cache);
        CHECK(code_of(host.commit(host.alice, cache).reply) == Errc::kUnsupported);
        CHECK(code_of(host.commit(host.bob, cache).reply) == Errc::kDenied);
        CHECK(host.work.grown.empty());
    }

    TEST_CASE("as many requests of a session wait as of any other kind") {
        Limits limits;
        limits.max_waits_per_session = 2;
        Host host(limits);
        CHECK_FALSE(host.commit(host.alice).reply);
        CHECK_FALSE(host.commit(host.alice).reply);
        CHECK(code_of(host.commit(host.alice).reply) == Errc::kNoMemory);
        CHECK(host.work.grown.size() == 1);
        CHECK_FALSE(host.commit(host.bob).reply);
    }

    TEST_CASE("it ends with the sessions that asked, and no further piece is committed") {
        Host host;
        (void)host.commit(host.alice);
        host.registry->end_session(host.alice, "test");
        host.work.finish_growth();
        CHECK(host.work.grown.size() == 1);
        CHECK(host.committed() == kArenaStep + kPiece);
        // Not the last one: the arena goes with that.
        (void)host.commit(host.bob);
        host.registry->end_session(host.bob, "test");
        CHECK(host.work.destroyed.empty());
        host.work.finish_growth();
        CHECK(host.work.destroyed.size() == 1);
        CHECK(host.charged() == 0);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("one that closes the arena is not answered with its end") {
        Host host;
        const auto asked = host.commit(host.alice);
        REQUIRE(host.registry->close_arena({host.alice, 70}, host.id).ok());
        CHECK(host.answer(asked.id).error.code == Errc::kClosed);
        const auto other = host.commit(host.bob);
        host.grow();
        CHECK(host.is_done(other));
    }

    TEST_CASE("what can't be written down is not committed, and the request hears of it") {
        Host host;
        const auto asked = host.commit(host.alice);
        host.journal.broken = true;
        while (host.work.grown_done < host.work.grown.size()) host.work.finish_growth();
        CHECK(host.answer(asked.id).error.code != Errc::kOk);
        CHECK(host.committed() == kArenaStep);
        CHECK(host.charged() == kArenaStep);
    }

    TEST_CASE(
        "a restarted daemon knows what was committed, and commits the rest when asked again") {
        Host host;
        (void)host.commit(host.alice);
        host.work.finish_growth();
        fabricshm::Fd kept(::dup(host.registry->descriptors(host.id).at(0)));
        host.restart();
        REQUIRE(host.restored.ok());
        CHECK(host.committed() == kArenaStep + kPiece);
        REQUIRE(host.registry->resume_session(host.alice, kAlice, kToken).ok());
        CHECK(code_of(host.commit(host.alice).reply) == Errc::kBusy);  // not presented yet
        REQUIRE(host.registry->adopt_arena({host.alice, 77}, host.id, std::move(kept)).ok());
        const auto again = host.commit(host.alice);
        CHECK(host.work.grown.at(0).to == host.committed() + kPiece);
        host.grow();
        CHECK(host.is_done(again));
        CHECK(host.charged() == kArenaBytes);
        CHECK(host.registry->problems().empty());
    }
}

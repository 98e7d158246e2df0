// Arenas that grow: what is granted is committed before, and what can't be is refused.

#include <doctest/doctest.h>

#include "fabricd/server/requests.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/registry_host.hpp"

using namespace test_support;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::kArenaStep;
using fabricshm::kMiB;

namespace {

constexpr Bytes kArenaBytes = 40 * kArenaStep;

struct Host : RegistryHost {
    explicit Host(const Limits& limits = {}) : RegistryHost(limits) {
        first_step = kArenaStep;
        renew();
        alice = session(kAlice);
        id = arena(alice, "job", kArenaBytes);
    }

    /// As a client asks; the id of a request that is parked, or the reply.
    struct Asked {
        std::uint64_t parked = 0;
        std::optional<proto::Message> reply;
    };
    [[nodiscard]] Asked ask_region(SessionId who, Bytes bytes) {
        proto::Message request = proto::make_request(proto::Type::kRegionCreate, ++requests);
        request.region.arena_id = raw(id);
        request.region.bytes = bytes;
        Asked asked;
        asked.reply = serve(*registry, who, request, {}, kNow);
        if (!asked.reply) asked.parked = requests;
        return asked;
    }
    Bytes committed() { return registry->snapshot(kNow).arenas.at(0).bytes_committed; }
    Bytes charged(std::uint32_t uid = kAlice.uid) {
        return registry->quotas_of("", uid, kNow).user.used_bytes;
    }

    SessionId alice;
    ArenaId id;
};

Limits with_quota(Bytes bytes) {
    Limits limits;
    limits.user_quota_bytes = bytes;
    return limits;
}

}  // namespace

TEST_SUITE("pool.growth") {
    TEST_CASE("an arena has its first step, and what fits there is granted at once") {
        Host host;
        CHECK(host.committed() == kArenaStep);
        CHECK(host.ask_region(host.alice, kArenaStep).reply->header.status == 0);
        CHECK(host.work.grown.empty());
    }

    TEST_CASE("what does not fit waits until the arena has grown") {
        Host host;
        const auto asked = host.ask_region(host.alice, kArenaStep + 1);
        REQUIRE(asked.parked != 0);
        REQUIRE(host.work.grown.size() == 1);
        CHECK(host.work.grown[0].to == 2 * kArenaStep);
        CHECK_FALSE(host.answered(asked.parked));
        host.work.finish_growth();
        const Answer answer = host.answer(asked.parked);
        CHECK(answer.error.code == Errc::kOk);
        CHECK(std::get<proto::Region>(answer.body).bytes == kArenaStep + 4096);
        CHECK(host.committed() == 2 * kArenaStep);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("requests that come meanwhile wait for one growth, in their order") {
        Host host;
        REQUIRE(host.ask_region(host.alice, kArenaStep).reply->header.status == 0);
        const auto first = host.ask_region(host.alice, kArenaStep);
        const auto second = host.ask_region(host.alice, kArenaStep);
        const auto small = host.ask_region(host.alice, 4096);
        CHECK(host.work.grown.size() == 1);
        host.work.finish_growth();
        CHECK(host.answer(first.parked).error.code == Errc::kOk);
        CHECK_FALSE(host.answered(second.parked));
        host.work.finish_growth();
        CHECK(host.answer(second.parked).error.code == Errc::kOk);
        CHECK_FALSE(host.answered(small.parked));
        host.work.finish_growth();
        CHECK(host.answer(small.parked).error.code == Errc::kOk);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a large growth is done in slices, and has to fit as a whole") {
        Host host;
        const auto asked = host.ask_region(host.alice, 36 * kArenaStep);
        REQUIRE(asked.parked != 0);
        CHECK(host.work.grown[0].to == 17 * kArenaStep);
        CHECK(host.work.grown[0].need == 36 * kArenaStep);
        host.work.finish_growth();
        host.work.finish_growth();
        CHECK_FALSE(host.answered(asked.parked));
        host.work.finish_growth();
        CHECK(host.answer(asked.parked).error.code == Errc::kOk);
        CHECK(host.work.grown.back().to == 36 * kArenaStep);
    }

    TEST_CASE("a pool that is full is the error of the request, and leaves everything as it was") {
        Host host;
        const auto asked = host.ask_region(host.alice, 2 * kArenaStep);
        host.work.finish_growth(Error{Errc::kNoMemory, 0, "pool"});
        CHECK(host.answer(asked.parked).error.code == Errc::kNoMemory);
        CHECK(host.committed() == kArenaStep);
        CHECK(host.charged() == kArenaStep);
        // Asked again, it is tried again.
        const auto again = host.ask_region(host.alice, 2 * kArenaStep);
        host.work.finish_growth();
        CHECK(host.answer(again.parked).error.code == Errc::kOk);
    }

    TEST_CASE("what no arena of this size can hold is refused at once") {
        Host host;
        CHECK(host.ask_region(host.alice, kArenaBytes + 1).reply->header.status != 0);
        CHECK(host.ask_region(host.alice, ~Bytes{0}).reply->header.status != 0);
        CHECK(host.work.grown.empty());
    }

    TEST_CASE("the user's quota counts what is committed") {
        Host host(with_quota(kArenaBytes));
        CHECK(host.charged() == kArenaStep);
        // A second arena of the same size would not have fitted next to the first one.
        const ArenaId other = host.arena(host.alice, "other", kArenaBytes);
        CHECK(other != ArenaId::kNone);
        CHECK(host.charged() == 2 * kArenaStep);
        CHECK(host.arena(host.alice, "more", kArenaBytes + kArenaStep) == ArenaId::kNone);
        const auto asked = host.ask_region(host.alice, 30 * kArenaStep);
        while (!host.answered(asked.parked)) host.work.finish_growth();
        CHECK(host.charged() == 31 * kArenaStep);
        CHECK(host.ask_region(host.alice, 10 * kArenaStep).reply->header.status != 0);
        host.registry->end_session(host.alice, "test");
        CHECK(host.charged() == 0);
    }

    TEST_CASE("a session that ends while its request waits gets nothing, and the arena goes") {
        Host host;
        CHECK(host.ask_region(host.alice, 2 * kArenaStep).parked != 0);
        host.registry->end_session(host.alice, "test");
        CHECK(host.work.destroyed.empty());
        host.work.finish_growth();
        CHECK(host.work.destroyed.size() == 1);
        CHECK(host.registry->problems().empty());
        CHECK(host.charged() == 0);
    }

    TEST_CASE("tensors, shards and groups wait for their bytes, too") {
        Host host;
        const SessionId bob = host.session(kBob);
        CHECK(host.arena(bob, "job", 0) == host.id);
        REQUIRE(host.ask_region(host.alice, kArenaStep).reply->header.status == 0);

        proto::Message tensor = proto::make_request(proto::Type::kTensorCreate, 1001);
        tensor.tensor = RegistryHost::tensor_body(host.id, "weights");
        CHECK_FALSE(serve(*host.registry, host.alice, tensor, {}, kNow));
        proto::Message shard = proto::make_request(proto::Type::kShardCreate, 1002);
        shard.shard.header.arena_id = raw(host.id);
        copy_name(shard.shard.name, "shard");
        shard.shard.dtype = 1;
        shard.shard.ndim = 1;
        shard.shard.shape[0] = 10;
        CHECK_FALSE(serve(*host.registry, host.alice, shard, {}, kNow));
        host.work.finish_growth();
        CHECK(host.answer(1001).error.code == Errc::kOk);
        CHECK(host.answer(1002).error.code == Errc::kOk);

        const auto join = [&](SessionId who, std::uint64_t request_id, int rank) {
            proto::Message request = proto::make_request(proto::Type::kGroupJoin, request_id);
            request.group.arena_id = raw(host.id);
            copy_name(request.group.name, "group");
            request.group.rank = rank;
            request.group.world = 2;
            request.group.timeout_ms = 1000;
            return serve(*host.registry, who, request, {}, kNow);
        };
        CHECK_FALSE(join(host.alice, 1003, 0));
        CHECK_FALSE(join(bob, 1004, 1));
        while (host.work.grown_done < host.work.grown.size()) host.work.finish_growth();
        CHECK(host.answer(1003).error.code == Errc::kOk);
        CHECK(host.answer(1004).error.code == Errc::kOk);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("survivors' smaller group waits for its block also when a death completes it") {
        Host host;
        const SessionId bob = host.session(kBob);
        CHECK(host.arena(bob, "job", 0) == host.id);
        const auto room = host.ask_region(host.alice, 4 * kArenaStep);
        host.work.finish_growth();
        const Answer made = host.answer(room.parked);
        const RegionId region{std::get<proto::Region>(made.body).region_id};
        REQUIRE(host.registry->free_region(host.alice, host.id, region).ok());
        const auto members = host.together({host.alice, bob}, host.id, "group");
        // Nothing is left of what is committed.
        while (host.region(host.alice, host.id, 4096 * 64).ok()) continue;
        while (host.region(host.alice, host.id).ok()) continue;
        const auto asked = host.shrink(host.alice, members.at(0));
        host.registry->end_session(bob, "killed");
        CHECK_FALSE(host.answered(asked));
        while (host.work.grown_done < host.work.grown.size()) host.work.finish_growth();
        CHECK(host.group_of(asked).world == 1);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a restarted daemon knows how far an arena had grown") {
        Host host;
        const auto asked = host.ask_region(host.alice, 2 * kArenaStep);
        host.work.finish_growth();
        REQUIRE(host.answer(asked.parked).error.code == Errc::kOk);
        const int fd = host.registry->descriptors(host.id).at(0);
        fabricshm::Fd kept(::dup(fd));
        host.restart();
        REQUIRE(host.restored.ok());
        CHECK(host.committed() == 2 * kArenaStep);
        CHECK(host.charged() == 2 * kArenaStep);
        REQUIRE(host.registry->resume_session(host.alice, kAlice, kToken).ok());
        REQUIRE(host.registry->adopt_arena({host.alice, 77}, host.id, std::move(kept)).ok());
        CHECK(host.work.adopted_uncommitted == kArenaBytes - 2 * kArenaStep);
        CHECK(host.ask_region(host.alice, kArenaStep).parked != 0);
        host.work.finish_growth();
        CHECK(host.committed() == 3 * kArenaStep);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a growth that can't be written down is none") {
        Host host;
        const auto asked = host.ask_region(host.alice, 2 * kArenaStep);
        host.journal.broken = true;
        host.work.finish_growth();
        CHECK(host.answer(asked.parked).error.code != Errc::kOk);
        CHECK(host.committed() == kArenaStep);
        CHECK(host.charged() == kArenaStep);
    }

    TEST_CASE("bytes that were reported lost before they were committed are never granted") {
        Host host;
        proto::Region lost{raw(host.id), 0, 0, kArenaStep, 4096};
        REQUIRE(host.registry->note_lost(host.alice, lost).ok());
        const auto asked = host.ask_region(host.alice, 2 * kArenaStep);
        while (!host.answered(asked.parked)) host.work.finish_growth();
        const Answer answer = host.answer(asked.parked);
        REQUIRE(answer.error.code == Errc::kOk);
        CHECK(std::get<proto::Region>(answer.body).offset == kArenaStep + 4096);
        CHECK(host.registry->problems().empty());
    }
}

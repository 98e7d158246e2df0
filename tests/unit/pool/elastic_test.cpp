#include "fabricd/pool/elastic.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/registry_host.hpp"

using namespace test_support;
using fabricshm::ElasticWord;
using fabricshm::kArenaStep;
using fabricshm::kMiB;

namespace {

constexpr Bytes kPool = 256 * kMiB;
constexpr Bytes kCache = 192 * kMiB;

// A registry whose pool counts as a real one does: what a growth takes, and what a shrinking gives.
struct Host : RegistryHost {
    Host() {
        first_step = kArenaStep;
        renew();
        work.pool.capacity = kPool;
        maker = session(kAlice);
    }
    TimePoint now = kNow;
    SessionId maker = SessionId::kNone;
    ArenaId cache = ArenaId::kNone;

    // As publish_elastic() does it: all of it is committed by a region, which is freed.
    void publish(Bytes floor = 32 * kMiB) {
        cache = arena(maker, "cache", kCache, proto::kArenaPublish);
        REQUIRE(cache != ArenaId::kNone);
        work.pool.used += kArenaStep;
        const auto served = [] {};
        REQUIRE(registry->park(maker, cache, kCache, false, served));
        grow();
        const auto region = registry->create_region(maker, {raw(cache), 0, 0, 0, kCache}).value();
        REQUIRE(registry->free_region(maker, cache, RegionId{region.region_id}).ok());
        words().floor.store(floor);
        poll();
    }
    fabricshm::ElasticWords& words() { return header().elastic; }
    fabricshm::PublishedHeader& header() {
        return *reinterpret_cast<fabricshm::PublishedHeader*>((*memory.contents)[cache][0].bytes);
    }
    ElasticWord target() { return fabricshm::unpack_elastic(words().target.load()); }
    void keep(Bytes bytes) { words().kept.store(pack(ElasticWord{target().serial, bytes})); }
    Bytes committed() { return words().committed.load(); }

    void poll(Duration later = 300ms) {
        now += later;
        (void)registry->expire(now);
    }
    // All growths that were asked for, as far as the pool has room.
    void grow() {
        while (work.grown_done < work.grown.size()) {
            const auto one = work.grown[work.grown_done];
            const Bytes before = committed_of(one.arena);
            const Bytes more = one.need - before;
            const bool fits = more <= work.pool.capacity - work.pool.used;
            if (fits) work.pool.used += one.to - before;
            work.finish_growth(fits ? Result<void>() : Error{Errc::kNoMemory, 0, "pool is full"});
            if (!fits) return;
        }
    }
    void shrink() {
        while (work.shrunk_done < work.shrunk.size()) {
            // What the registry has taken off already, and the pool has not.
            work.pool.used = 0;
            work.finish_shrinking();
            recount();
        }
    }
    void recount() {
        work.pool.used = 0;
        for (const auto& one : registry->snapshot(now).arenas)
            work.pool.used += one.bytes_committed;
    }
    Bytes committed_of(ArenaId id) {
        for (const auto& one : registry->snapshot(now).arenas) {
            if (one.id == raw(id)) return one.bytes_committed;
        }
        return 0;
    }
    // A job's region: parked, served when it may be; true once it was.
    struct Job {
        SessionId session;
        ArenaId arena;
        bool served = false;
    };
    std::unique_ptr<Job> job(const char* name, Bytes bytes) {
        auto made = std::make_unique<Job>();
        made->session = session(kBob);
        made->arena = arena(made->session, name, bytes);
        recount();
        Job* const one = made.get();
        REQUIRE(
            registry->park(one->session, one->arena, bytes, false, [one] { one->served = true; }));
        grow();
        return made;
    }
    void is_sound() {
        for (const auto& problem : registry->problems()) FAIL(problem);
    }
};

}  // namespace

TEST_SUITE("pool.elastic") {
    TEST_CASE("a request that the pool has no room for waits until a cache has given way") {
        Host host;
        host.publish();
        const auto job = host.job("job", 128 * kMiB);
        CHECK_FALSE(job->served);
        // 256 less 192, the header's step and the job's first: 112 MiB more are needed.
        CHECK(host.target().bytes < host.committed());
        const Bytes target = host.target().bytes;
        CHECK(host.work.shrunk.empty());
        host.poll();
        CHECK(host.work.shrunk.empty());  // nothing goes before the maker's word
        host.keep(target);
        host.poll(20ms);
        REQUIRE(host.work.shrunk.size() == 1);
        CHECK(host.work.shrunk[0].to == target);
        CHECK_FALSE(job->served);  // nor is anything granted before the pages are gone
        host.shrink();
        CHECK(host.committed() == target);
        host.poll(20ms);
        host.grow();
        CHECK(job->served);
        host.is_sound();
    }

    TEST_CASE("a cache gives way to a request for all of an arena, too, piece by piece") {
        Host host;
        host.publish();
        const SessionId who = host.session(kBob);
        const ArenaId id = host.arena(who, "job", 128 * kMiB);
        host.recount();
        REQUIRE(host.registry->commits.ask({who, 7}, id).ok());
        host.grow();  // 48 MiB are free, and the first piece is of 64
        CHECK_FALSE(host.answered(7));
        for (int turn = 0; turn < 20 && !host.answered(7); ++turn) {
            host.keep(host.target().bytes);
            host.poll(20ms);
            host.shrink();
            host.poll(20ms);
            host.grow();
        }
        CHECK(host.answer(7).error.code == Errc::kOk);
        CHECK(host.committed_of(id) == 128 * kMiB);
        CHECK(host.committed() + 128 * kMiB <= kPool);
        host.is_sound();
    }

    TEST_CASE("a word for another target gives nothing") {
        Host host;
        host.publish();
        const ElasticWord before = host.target();
        const auto job = host.job("job", 128 * kMiB);
        host.words().kept.store(pack(ElasticWord{before.serial, 32 * kMiB}));
        host.poll();
        CHECK(host.work.shrunk.empty());
        host.words().kept.store(~std::uint64_t{0});
        host.poll();
        CHECK(host.work.shrunk.empty());
        // Less than it needs itself, and less than was asked for: no more goes than was asked for.
        host.keep(0);
        host.poll();
        REQUIRE(host.work.shrunk.size() == 1);
        CHECK(host.work.shrunk[0].to == host.target().bytes);
    }

    TEST_CASE("a maker gives a part, and the rest later") {
        Host host;
        host.publish();
        const auto job = host.job("job", 128 * kMiB);
        const Bytes target = host.target().bytes;
        host.keep(target + 3 * kArenaStep - 4096);
        host.poll();
        REQUIRE(host.work.shrunk.size() == 1);
        CHECK(host.work.shrunk[0].to ==
              fabricshm::round_up(target + 3 * kArenaStep - 4096, kArenaStep));
        host.shrink();
        host.poll();
        host.grow();
        CHECK_FALSE(job->served);
        host.keep(target);
        host.poll();
        host.shrink();
        host.poll(20ms);
        host.grow();
        CHECK(job->served);
        host.is_sound();
    }

    TEST_CASE(
        "what no cache can give is refused at once, and what none gives when the time is over") {
        Host host;
        host.publish(160 * kMiB);
        auto refused = host.job("large", 128 * kMiB);
        CHECK(refused->served);  // to hear that there is no room
        Host other;
        other.publish();
        const auto job = other.job("job", 128 * kMiB);
        other.poll(Elastic::kWait / 2);
        CHECK_FALSE(job->served);
        other.poll(Elastic::kWait);
        other.grow();
        CHECK(job->served);
        CHECK(other.registry->elastic.demand().refused == other.registry->elastic.demand().waited);
        // Asked for no more, the cache has its target back.
        other.poll();
        other.poll(Elastic::kRest + 1s);
        CHECK(other.target().bytes == other.committed());
    }

    TEST_CASE("a cache that has no floor, or a region, gives nothing") {
        Host host;
        host.publish(0);
        CHECK(host.job("job", 128 * kMiB)->served);
        Host other;
        other.publish();
        other.words().floor.store(32 * kMiB);
        REQUIRE(
            other.registry->create_region(other.maker, {raw(other.cache), 0, 0, 0, kCache}).ok());
        CHECK(other.job("job", 128 * kMiB)->served);
    }

    TEST_CASE("what a job leaves free is the cache's again, once no request needs it") {
        Host host;
        host.publish();
        auto job = host.job("job", 128 * kMiB);
        host.keep(host.target().bytes);
        host.poll();
        host.shrink();
        host.poll(20ms);
        host.grow();
        REQUIRE(job->served);
        const Bytes small = host.committed();
        host.poll(Elastic::kRest + 1s);
        host.recount();
        CHECK(host.work.pool.capacity - host.work.pool.used < kArenaStep);
        CHECK(host.committed() == small);
        host.registry->end_session(job->session, "test");
        host.settle();
        host.recount();
        host.poll(Elastic::kRest + 1s);
        host.grow();
        CHECK(host.committed() > small);
        CHECK(host.target().bytes == host.committed());
        for (int i = 0; i < 8; ++i) {
            host.poll();
            host.grow();
        }
        CHECK(host.committed() >= kCache);
        host.is_sound();
    }

    TEST_CASE(
        "a daemon that was killed at any point counts what the journal says, and asks again") {
        Host host;
        host.publish();
        const auto job = host.job("job", 128 * kMiB);
        const Bytes target = host.target().bytes;
        const std::uint32_t serial = host.target().serial;
        fabricshm::Fd file(
            ::fcntl(host.registry->descriptors(host.cache, host.maker).at(0), F_DUPFD_CLOEXEC, 0));
        const auto present = [&] {
            REQUIRE(host.registry->resume_session(host.maker, kAlice, kToken).ok());
            fabricshm::Fd copy(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
            REQUIRE(host.registry
                        ->adopt_arena({host.maker, ++host.requests}, host.cache, std::move(copy))
                        .ok());
        };
        SUBCASE("before the record all of it is committed, and a new target is asked for") {
            host.keep(target);
            host.restart();
            REQUIRE(host.restored.ok());
            present();
            CHECK(host.committed() > target);
            CHECK(host.target().serial > serial);
            CHECK(host.target().bytes == host.committed());
        }
        SUBCASE("behind it the pages go when the arena is presented") {
            host.keep(target);
            host.poll();
            REQUIRE(host.work.shrunk.size() == 1);
            host.restart();
            REQUIRE(host.restored.ok());
            present();
            CHECK(host.committed() == target);
            CHECK(host.work.adopted_uncommitted != 0);
            CHECK(host.target().serial > serial);
        }
        host.is_sound();
    }

    TEST_CASE("a request that comes before a cache is presented again waits for it") {
        Host host;
        host.publish();
        const fabricshm::Fd file(::dup(host.registry->descriptors(host.cache, host.maker).at(0)));
        host.restart();
        REQUIRE(host.restored.ok());
        host.work.pool.capacity = kPool;
        const auto job = host.job("job", 128 * kMiB);
        CHECK_FALSE(job->served);
        host.poll();
        REQUIRE(host.registry->resume_session(host.maker, kAlice, kToken).ok());
        const auto asked = host.registry->adopt_arena({host.maker, ++host.requests}, host.cache,
                                                      fabricshm::Fd(::dup(file.get())));
        REQUIRE(asked.ok());
        host.poll(20ms);
        const Bytes target = host.target().bytes;
        CHECK(target < host.committed());
        host.keep(target);
        host.poll(20ms);
        host.shrink();
        host.poll(20ms);
        host.grow();
        CHECK(job->served);
        host.is_sound();
    }

    TEST_CASE("a quota of the control loop holds below what is free") {
        Host host;
        host.publish();
        const CacheView before = host.registry->elastic.views().at(0);
        CHECK(before.quota_bytes >= kCache);
        CHECK(host.registry->elastic.shift({{"cache:cache", before.quota_bytes - 1, kMiB}})
                  .error()
                  .code == Errc::kBusy);
        CHECK(host.registry->elastic.shift({{"cache:none", 0, 0}}).error().code == Errc::kNotFound);
        REQUIRE(
            host.registry->elastic.shift({{"cache:cache", before.quota_bytes, 96 * kMiB}}).ok());
        host.poll();
        CHECK(host.target().bytes == 96 * kMiB);
        host.keep(96 * kMiB);
        host.poll();
        host.shrink();
        for (int i = 0; i < 20; ++i) {
            host.poll();
            host.grow();
        }
        CHECK(host.committed() == 96 * kMiB);
        REQUIRE(host.registry->elastic.shift({{"cache:cache", 96 * kMiB, kCache}}).ok());
        for (int i = 0; i < 20; ++i) {
            host.poll();
            host.grow();
        }
        CHECK(host.committed() >= kCache);
        host.is_sound();
    }

    TEST_CASE("what a cache has is never more than its quota, also when that is no whole step") {
        Host host;
        host.publish();
        const Bytes whole = host.registry->elastic.views().at(0).quota_bytes;
        const Bytes quota = 96 * kMiB + 4096;
        REQUIRE(host.registry->elastic.shift({{"cache:cache", whole, quota}}).ok());
        host.poll();
        CHECK(host.target().bytes == 96 * kMiB);
        host.keep(host.target().bytes);
        host.poll();
        host.shrink();
        for (int i = 0; i < 20; ++i) {
            host.poll();
            host.grow();
            CHECK(host.committed() <= quota);
        }
        CHECK(host.registry->elastic.views().at(0).quota_bytes == quota);
        // All of it is the whole arena, to its last page.
        REQUIRE(host.registry->elastic.shift({{"cache:cache", quota, whole}}).ok());
        for (int i = 0; i < 20; ++i) {
            host.poll();
            host.grow();
        }
        CHECK(host.committed() == host.registry->elastic.views().at(0).bytes);
        host.is_sound();
    }
}

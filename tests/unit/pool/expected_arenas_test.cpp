#include <doctest/doctest.h>

#include "libfabricshm/machine/emu_backend.hpp"
#include "tests/support/registry_host.hpp"

using namespace test_support;
using fabricshm::kArenaStep;

namespace {

constexpr Bytes kFourSteps = 4 * kArenaStep;

/// The work on a real pool, done at once.
struct RealPool final : PoolWork {
    RealPool() {
        fabricshm::EmuOptions options;
        options.capacity = kFourSteps;
        backend = std::move(fabricshm::make_emu_backend(std::move(options))).value();
    }
    void expect(ArenaId arena, Bytes committed) override { backend->expect(raw(arena), committed); }
    void create(ArenaId arena, const std::string& name, std::uint32_t uid, Bytes bytes) override {
        registry->arena_made(arena, backend->create(raw(arena), name, uid, bytes));
    }
    void adopt(ArenaId arena, Bytes bytes, Bytes uncommitted,
               fabricshm::PresentedFiles presented) override {
        registry->arena_adopted(
            arena, backend->adopt(raw(arena), bytes, std::move(presented), uncommitted));
    }
    void grow(ArenaId, Bytes, Bytes) override {}
    void shrink(ArenaId, Bytes) override {}
    void destroy(ArenaId arena) noexcept override { backend->destroy(raw(arena)); }
    void forget(ArenaId, std::shared_ptr<void>) noexcept override {}
    fabricshm::PoolTotals totals() const override { return backend->totals(); }

    std::unique_ptr<fabricshm::PoolBackend> backend;
    Registry* registry = nullptr;
};

/// A registry whose pool has an account of its own.
struct RestartHost : RegistryHost {
    RestartHost() { start(); }
    void start() {
        renew();
        pool = std::make_unique<RealPool>();
        registry = std::make_unique<Registry>(
            limits,
            Registry::Parts{&journal, &memory, pool.get(), {}, nullptr, &copies, false, true});
        pool->registry = registry.get();
    }
    void kill_and_start() {
        const auto image = replay(journal.contents);
        REQUIRE(image.ok());
        start();
        REQUIRE(registry->restore(*image, kNow, 10s).ok());
    }
    fabricshm::Fd file_of(ArenaId id) {
        return fabricshm::Fd(::dup(registry->descriptors(id, SessionId::kNone).at(0)));
    }
    Error present(SessionId who, ArenaId id, const fabricshm::Fd& file) {
        const std::uint64_t request = ++requests;
        const auto asked =
            registry->adopt_arena({who, request}, id, fabricshm::Fd(::dup(file.get())));
        return asked.ok() ? answer(request).error : asked.error();
    }
    /// As `fabricctl pools` and `fabricctl arenas` say it, which must be the same.
    Bytes used() {
        Bytes sum = 0;
        for (const auto& one : registry->snapshot(kNow).arenas) sum += one.bytes_committed;
        CHECK(pool->totals().used == sum);
        return sum;
    }
    std::unique_ptr<RealPool> pool;
};

}  // namespace

TEST_SUITE("pool.expected_arenas") {
    TEST_CASE("what arenas of before a restart have is used before they are presented, and after") {
        RestartHost host;
        const SessionId alice = host.session(kAlice);
        host.arena(alice, "one", kArenaStep);
        const ArenaId two = host.arena(alice, "two", 2 * kArenaStep);
        host.arena(alice, "three", kArenaStep);
        CHECK(host.used() == 3 * kArenaStep);
        const fabricshm::Fd file = host.file_of(two);

        host.kill_and_start();
        CHECK(host.used() == 3 * kArenaStep);
        const SessionId bob = host.session(kBob);
        const ArenaId fits = host.arena(bob, "fits", kArenaStep);
        REQUIRE(fits != ArenaId::kNone);
        CHECK(host.arena(bob, "does-not", kArenaStep) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kNoMemory);
        REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
        CHECK(host.present(alice, two, host.file_of(fits)).code == Errc::kCorrupt);
        CHECK(host.used() == kFourSteps);
        CHECK(host.present(alice, two, file).code == Errc::kOk);
        CHECK(host.used() == kFourSteps);
        CHECK(host.present(alice, two, file).code == Errc::kOk);
        CHECK(host.used() == kFourSteps);

        host.registry->expire(kNow + 9s);
        CHECK(host.arena(bob, "does-not", kArenaStep) == ArenaId::kNone);
        host.registry->expire(kNow + 10s);
        CHECK(host.used() == 2 * kArenaStep);  // alice presented neither `one` nor `three`
        CHECK(host.registry->snapshot(kNow).arenas.size() == 2);
        CHECK(host.arena(bob, "now", kArenaStep) != ArenaId::kNone);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("the bytes of a session that is found dead after a restart are free at once") {
        RestartHost host;
        const SessionId alice = host.session(kAlice);
        host.arena(alice, "one", kArenaStep);
        host.arena(alice, "two", 3 * kArenaStep);
        host.kill_and_start();
        CHECK(host.used() == 2 * kArenaStep);
        host.registry->end_session(alice, "its process is gone");
        CHECK(host.used() == 0);
        const SessionId bob = host.session(kBob);
        for (const char* name : {"a", "b", "c", "d"}) {
            CHECK(host.arena(bob, name, kArenaStep) != ArenaId::kNone);
        }
        CHECK(host.used() == kFourSteps);
    }
}

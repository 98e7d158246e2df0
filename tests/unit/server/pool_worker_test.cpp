#include "fabricd/server/pool_worker.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::PoolPiece;

namespace {

/// A pool that writes down what it was asked for, on the worker's thread.
struct NotedPool final : fabricshm::PoolBackend {
    const char* kind() const noexcept override { return "test"; }
    std::string describe() const override { return "a test's"; }
    Result<PoolPiece> create(std::uint64_t id, const std::string&, std::uint32_t,
                             Bytes bytes) override {
        if (bytes > 100) return Error{Errc::kNoMemory, 0, "pool"};
        note("create " + std::to_string(id));
        used += bytes;
        PoolPiece piece;
        piece.bytes = bytes;
        return piece;
    }
    Result<PoolPiece> adopt(std::uint64_t id, Bytes bytes, fabricshm::PresentedFiles presented,
                            Bytes uncommitted) override {
        note("adopt " + std::to_string(id));
        PoolPiece piece;
        piece.fd = std::move(presented.fd);
        piece.bytes = bytes;
        piece.uncommitted = uncommitted;
        return piece;
    }
    Result<void> grow(std::uint64_t id, Bytes to, Bytes need) override {
        note("grow " + std::to_string(id));
        if (grows_in_steps) return {};
        if (need > 100) return Error{Errc::kNoMemory, 0, "pool"};
        used = to;
        return {};
    }
    void destroy(std::uint64_t id) noexcept override {
        note("destroy " + std::to_string(id));
        used = 0;
    }
    Result<std::vector<fabricshm::PoolLeftover>> list() override {
        return std::vector<fabricshm::PoolLeftover>{};
    }
    fabricshm::PoolTotals totals() const noexcept override { return {1000, used}; }

    void note(std::string what) {
        const std::lock_guard lock(mutex);
        notes.push_back(std::move(what));
    }
    std::mutex mutex;
    bool commits_whole() const noexcept override { return !grows_in_steps; }

    std::vector<std::string> notes;
    bool grows_in_steps = false;
    Bytes used = 0;
};

/// The control thread's side: what the worker posts waits here until it is taken.
struct Inbox {
    bool post(std::function<void()> task) {
        const std::lock_guard lock(mutex);
        tasks.push_back(std::move(task));
        came.notify_one();
        return true;
    }
    /// Runs the next task; false when none comes within ten seconds.
    bool take() {
        std::unique_lock lock(mutex);
        if (!came.wait_for(lock, std::chrono::seconds(10), [&] { return !tasks.empty(); })) {
            return false;
        }
        const auto task = std::move(tasks.front());
        tasks.erase(tasks.begin());
        lock.unlock();
        task();
        return true;
    }
    std::mutex mutex;
    std::condition_variable came;
    std::vector<std::function<void()>> tasks;
};

struct Fixture {
    explicit Fixture(bool starts = true)
        : worker(pool, [this](std::function<void()> task) { return inbox.post(task); }) {
        if (starts) start();
    }
    void start() {
        worker.start(
            [this](ArenaId arena, Result<PoolPiece> piece) {
                made.emplace_back(raw(arena), piece.ok() ? Errc::kOk : piece.error().code);
            },
            [this](ArenaId arena, Result<PoolPiece>) { adopted.push_back(raw(arena)); },
            [this](ArenaId arena, Bytes to, const Result<void>& done) {
                grown.push_back({raw(arena), to, done.error().code});
            });
    }
    NotedPool pool;
    Inbox inbox;
    std::vector<std::pair<std::uint64_t, Errc>> made;
    std::vector<std::uint64_t> adopted;
    std::vector<std::tuple<std::uint64_t, Bytes, Errc>> grown;
    PoolWorker worker;
};

}  // namespace

TEST_SUITE("server.pool_worker") {
    TEST_CASE("results come on the thread that takes them, and the totals are right by then") {
        Fixture fixture;
        fixture.worker.create(ArenaId{7}, "a", 0, 60);
        REQUIRE(fixture.inbox.take());
        REQUIRE(fixture.made.size() == 1);
        CHECK(fixture.made[0] == std::pair{std::uint64_t{7}, Errc::kOk});
        CHECK(fixture.worker.totals().used == 60);
    }

    TEST_CASE("a pool that is full is an answer like any other") {
        Fixture fixture;
        fixture.worker.create(ArenaId{1}, "a", 0, 101);
        REQUIRE(fixture.inbox.take());
        CHECK(fixture.made[0].second == Errc::kNoMemory);
    }

    TEST_CASE("work is done in the order it came") {
        Fixture fixture;
        fixture.worker.create(ArenaId{1}, "a", 0, 10);
        fixture.worker.destroy(ArenaId{1});
        fixture.worker.adopt(ArenaId{2}, 20, 0, fabricshm::Fd());
        REQUIRE(fixture.inbox.take());
        REQUIRE(fixture.inbox.take());
        fixture.worker.stop();
        CHECK(fixture.pool.notes == std::vector<std::string>{"create 1", "destroy 1", "adopt 2"});
        CHECK(fixture.adopted == std::vector<std::uint64_t>{2});
    }

    TEST_CASE("an arena grows, or it does not, and the totals are right by then") {
        Fixture fixture;
        fixture.worker.create(ArenaId{1}, "a", 0, 10);
        fixture.worker.grow(ArenaId{1}, 40, 80);
        fixture.worker.grow(ArenaId{1}, 90, 101);
        for (int i = 0; i < 3; ++i) REQUIRE(fixture.inbox.take());
        REQUIRE(fixture.grown.size() == 2);
        CHECK(fixture.grown[0] == std::tuple{std::uint64_t{1}, Bytes{40}, Errc::kOk});
        CHECK(fixture.grown[1] == std::tuple{std::uint64_t{1}, Bytes{90}, Errc::kNoMemory});
        CHECK(fixture.worker.totals().used == 40);
    }

    TEST_CASE("small arenas do not wait for large growths, which take turns in slices") {
        constexpr Bytes kSlice = PoolWorker::kSlice;
        Fixture fixture(false);
        fixture.pool.grows_in_steps = true;
        fixture.worker.create(ArenaId{1}, "a", 0, 10);
        fixture.worker.create(ArenaId{2}, "b", 0, 10);
        // All of it is asked for before the worker begins.
        fixture.worker.grow(ArenaId{1}, 2 * kSlice, 2 * kSlice);
        fixture.worker.grow(ArenaId{2}, 2 * kSlice, 2 * kSlice);
        fixture.worker.destroy(ArenaId{3});
        fixture.worker.create(ArenaId{4}, "d", 0, 10);
        fixture.start();
        for (int i = 0; i < 5; ++i) REQUIRE(fixture.inbox.take());
        fixture.worker.stop();
        CHECK(fixture.pool.notes == std::vector<std::string>{"create 1", "create 2", "destroy 3",
                                                             "create 4", "grow 1", "grow 2",
                                                             "grow 1", "grow 2"});
        REQUIRE(fixture.grown.size() == 2);
        CHECK(fixture.grown[0] == std::tuple{std::uint64_t{1}, 2 * kSlice, Errc::kOk});
    }

    TEST_CASE("small arenas without end do not keep a large one from growing") {
        Fixture fixture(false);
        fixture.pool.grows_in_steps = true;
        fixture.worker.create(ArenaId{1}, "a", 0, 10);
        fixture.worker.grow(ArenaId{1}, 40, 40);
        for (std::uint64_t id = 2; id < 60; ++id) fixture.worker.create(ArenaId{id}, "b", 0, 1);
        fixture.start();
        for (int i = 0; i < 60; ++i) REQUIRE(fixture.inbox.take());
        fixture.worker.stop();
        const auto& notes = fixture.pool.notes;
        const auto grown = std::find(notes.begin(), notes.end(), "grow 1");
        CHECK(grown - notes.begin() < 20);
    }

    TEST_CASE("a stop makes nothing more, but what is to be destroyed is destroyed") {
        Fixture fixture;
        fixture.worker.create(ArenaId{1}, "a", 0, 10);
        fixture.worker.destroy(ArenaId{1});
        fixture.worker.stop();
        fixture.worker.stop();
        REQUIRE_FALSE(fixture.pool.notes.empty());
        CHECK(fixture.pool.notes.back() == "destroy 1");
    }

    TEST_CASE("the records of an arena end on the worker's thread, after its memory") {
        Fixture fixture;
        std::thread::id ended_on;
        std::string before;
        const auto records = [&] {
            return std::shared_ptr<void>(nullptr, [&](void*) {
                ended_on = std::this_thread::get_id();
                before = fixture.pool.notes.back();
            });
        };
        fixture.worker.destroy(ArenaId{1});
        fixture.worker.forget(ArenaId{1}, records());
        fixture.worker.stop();
        CHECK(before == "destroy 1");
        CHECK(ended_on != std::thread::id{});
        CHECK(ended_on != std::this_thread::get_id());
    }
}

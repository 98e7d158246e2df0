#include "fabricd/server/shard_mover.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <optional>

using namespace fabricd;
using fabricshm::Clock;
using fabricshm::kMiB;
using fabricshm::ShardWord;

namespace {

constexpr Bytes kBytes = 3 * kMiB;

/// Shards of no session, and what the mover says of each.
class Host {
  public:
    Host() {
        mover.start([this](ShardId id, const Result<ShardWord>& seen) {
            ended.emplace(raw(id.header), seen.ok() ? Errc::kOk : seen.error().code);
        });
    }
    std::shared_ptr<CopyProgress> order(std::uint64_t id, Bytes bytes_per_second) {
        void* memory = std::aligned_alloc(kMiB, kMiB + 2 * kBytes);
        const std::shared_ptr<void> keep(memory, std::free);
        auto* data = static_cast<std::byte*>(memory);
        fabricshm::format_shard(*reinterpret_cast<fabricshm::ShardHeader*>(data), {id, 1}, kBytes,
                                1, 0);
        std::memset(data + kMiB, static_cast<int>(id), 2 * kBytes);
        CopyJob job;
        job.shard = {ArenaId{1}, RegionId{id}};
        job.header = {keep, data};
        job.from = {keep, data + kMiB};
        job.to = {keep, data + kMiB + kBytes};
        job.bytes = kBytes;
        job.bytes_per_second = bytes_per_second;
        job.progress = std::make_shared<CopyProgress>();
        auto progress = job.progress;
        mover.copy(std::move(job));
        return progress;
    }
    /// Plays the control thread until the shard's copy has ended, for a minute at most.
    std::optional<Errc> wait(std::uint64_t id) {
        const TimePoint deadline = Clock::now() + std::chrono::minutes(1);
        std::unique_lock lock(mutex);
        while (ended.count(id) == 0) {
            if (!posted.wait_until(lock, deadline, [this] { return !tasks.empty(); })) return {};
            tasks.front()();
            tasks.pop_front();
        }
        return ended[id];
    }

    std::mutex mutex;
    std::condition_variable posted;
    std::deque<std::function<void()>> tasks;
    std::map<std::uint64_t, Errc> ended;
    ShardMover mover{[this](std::function<void()> task) {
                         const std::lock_guard lock(mutex);
                         tasks.push_back(std::move(task));
                         posted.notify_all();
                         return true;
                     },
                     0};
};

}  // namespace

TEST_SUITE("server.shard_mover") {
    TEST_CASE("a copy that is slow by its order holds up no other, and ends when it is cancelled") {
        Host host;
        const auto slow = host.order(1, 1);  // a byte per second
        host.order(2, 0);
        host.order(3, 0);
        CHECK(host.wait(3) == Errc::kOk);
        CHECK(host.wait(2) == Errc::kOk);
        CHECK(host.ended.count(1) == 0);
        slow->cancelled.store(true);
        CHECK(host.wait(1) == Errc::kClosed);
    }

    TEST_CASE("what is under way when it stops is not reported") {
        Host host;
        host.order(1, 1);
        host.order(2, 0);
        CHECK(host.wait(2) == Errc::kOk);
        host.mover.stop();
        host.mover.stop();
        CHECK(host.tasks.empty());
        CHECK(host.ended.size() == 1);
    }

    TEST_CASE("node 0 is there, and none beyond the last one that Linux could have") {
        const Host host;
        CHECK(host.mover.knows_node(0));
        CHECK_FALSE(host.mover.knows_node(1023));
        CHECK_FALSE(host.mover.knows_node(1024));
    }
}

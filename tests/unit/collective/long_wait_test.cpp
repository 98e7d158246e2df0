// What FABRIC_LOG=info says of a rank that others wait for.

#include "libfabricshm/collective/long_wait.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/base/log.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

std::mutex g_mutex;
std::string g_text;

void keep_line(LogLevel, const char* line) {
    const std::lock_guard lock(g_mutex);
    g_text += std::string(line) + "\n";
}

std::string text() {
    const std::lock_guard lock(g_mutex);
    return g_text;
}

bool has(const std::string& part) {
    return text().find(part) != std::string::npos;
}

struct Logged {
    explicit Logged(LogLevel level) {
        g_text.clear();
        set_log_sink(keep_line);
        set_log_level(level);
    }
    ~Logged() {
        set_log_level(LogLevel::kWarning);
        set_log_sink(nullptr);
    }
};

/// Keeps what ranks show, by rank.
class KeptScreen final : public WaitScreen {
  public:
    int show(int place, const WaitRecord& record) noexcept override {
        const std::lock_guard lock(mutex_);
        shown_[record.rank] = record;
        return place < 0 ? record.rank : place;
    }
    void hide(int place) noexcept override {
        const std::lock_guard lock(mutex_);
        shown_[place] = WaitRecord{};
    }
    /// Bits of the ranks that `rank` waits for; 0: it does not wait.
    std::uint64_t late(int rank) const {
        const std::lock_guard lock(mutex_);
        return shown_[rank].late[0];
    }
    WaitRecord record(int rank) const {
        const std::lock_guard lock(mutex_);
        return shown_[rank];
    }

  private:
    mutable std::mutex mutex_;
    WaitRecord shown_[8]{};
};

/// A barrier of five ranks, of which 1 and 3 come when `seen` has said so once. False: it did not
/// go well. `seen` is called by one thread at a time.
bool meet_late(TestArena& arena, const std::shared_ptr<KeptScreen>& screen,
               const std::function<bool()>& seen) {
    std::atomic<int> well{0};
    std::mutex looking;
    // Kept: as soon as one of the two has come, the screen shows the other alone.
    bool was_seen = false;
    const auto may_come = [&] {
        const std::lock_guard lock(looking);
        return was_seen = was_seen || seen();
    };
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 5; ++rank) {
        ranks.emplace_back([&, rank] {
            const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
            GroupPlace place = arena.place(rank);
            place.screen = screen;
            const auto group = Group::attach(std::move(place), deadline);
            if (!group.ok()) return;
            (*group)->set_long_wait(std::chrono::milliseconds(1));
            Call call;
            call.deadline = deadline;
            const bool late = rank == 1 || rank == 3;
            while (late && !may_come() && Clock::now() < deadline) std::this_thread::yield();
            if ((*group)->run(call).ok()) ++well;
        });
    }
    for (auto& rank : ranks) rank.join();
    return well == 5;
}

constexpr auto kFrom = std::chrono::seconds(5);
const Doing kDoing{"allreduce", 400};

}  // namespace

TEST_SUITE("collective.long_wait") {
    TEST_CASE("a long wait is named again after twice the time, and once more at its end") {
        const Logged logged(LogLevel::kInfo);
        {
            LongWait wait(0, 3, kFrom);
            const TimePoint now = Clock::now();
            CHECK_FALSE(wait.is_due(now));
            CHECK(wait.is_due(now + kFrom));
            wait.say(2, 4711, kDoing, now + kFrom);
            CHECK(has(
                "rank 0 of 3: has waited 5.0 s for rank 2 (process 4711) in allreduce, 400 bytes"));
            CHECK_FALSE(wait.is_due(now + kFrom));
            CHECK(wait.is_due(now + 2 * kFrom));
            CHECK_FALSE(has("ended"));
        }
        CHECK(has("rank 0 of 3: the wait for rank 2 ended after"));
    }

    TEST_CASE("a wait that is not long leaves no line, and at other levels none does") {
        {
            const Logged logged(LogLevel::kInfo);
            { const LongWait wait(0, 3, kFrom); }
            CHECK(text().empty());
        }
        const Logged logged(LogLevel::kWarning);
        {
            LongWait wait(0, 3, kFrom);
            wait.say(2, 4711, kDoing, Clock::now() + kFrom);
        }
        CHECK(text().empty());
    }

    TEST_CASE("a long wait is on the screen until it ends, with all ranks that are late") {
        TestArena arena(5, kMiB);
        const auto screen = std::make_shared<KeptScreen>();
        constexpr std::uint64_t kBoth = 1 << 1 | 1 << 3;
        WaitRecord shown{};
        CHECK(meet_late(arena, screen, [&] {
            if (screen->late(0) != kBoth || screen->late(4) != kBoth) return false;
            shown = screen->record(0);
            return true;
        }));
        CHECK(std::string(shown.kind) == "barrier");
        CHECK(shown.world == 5);
        CHECK(shown.began_ns > 0);
        for (int rank = 0; rank < 5; ++rank) CHECK(screen->late(rank) == 0);
    }

    TEST_CASE("along the tree only ranks count as late that have not come themselves") {
        TestArena arena(5, kMiB);
        Tuning tuning;
        tuning.tree_world = 2;
        arena.set_tuning(tuning);
        const auto screen = std::make_shared<KeptScreen>();
        constexpr std::uint64_t kBoth = 1 << 1 | 1 << 3;
        CHECK(meet_late(arena, screen, [&] {
            const std::uint64_t late = screen->late(0);
            return late != 0 && (late & ~kBoth) == 0;
        }));
    }

    TEST_CASE("a message that does not come is on the screen, and in the log, as a collective is") {
        const Logged logged(LogLevel::kInfo);
        TestArena arena(3, 8 * kMiB);
        const auto screen = std::make_shared<KeptScreen>();
        std::atomic<int> well{0};
        WaitRecord shown[2]{};
        std::vector<std::thread> ranks;
        for (int rank = 0; rank < 3; ++rank) {
            ranks.emplace_back([&, rank] {
                const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
                GroupPlace place = arena.place(rank);
                place.screen = screen;
                const auto group = Group::attach(std::move(place), deadline);
                if (!group.ok()) return;
                (*group)->set_long_wait(std::chrono::milliseconds(1));
                std::byte bytes[24]{};
                Call call;
                call.deadline = deadline;
                call.count = sizeof bytes;
                call.input = call.output = bytes;
                // Rank 0 waits for rank 2 in its own thread, rank 1 for any in another one.
                call.kind = rank == 2 ? Kind::kSend : Kind::kRecv;
                call.peer = rank == 0 ? 2 : kAnyPeer;
                if (rank == 0) well += (*group)->run(call).ok() ? 1 : 0;
                if (rank == 1) well += (*group)->start(call).value()->wait().ok() ? 1 : 0;
                const auto seen = [&] {
                    shown[0] = screen->record(0);
                    shown[1] = screen->record(1);
                    return shown[0].late[0] != 0 && shown[1].late[0] != 0 &&
                           has("rank 0 of 3: has waited");
                };
                while (rank == 2 && !seen() && Clock::now() < deadline) std::this_thread::yield();
                for (int peer = 0; rank == 2 && peer < 2; ++peer) {
                    call.peer = peer;
                    well += (*group)->run(call).ok() ? 1 : 0;
                }
            });
        }
        for (auto& rank : ranks) rank.join();
        CHECK(well == 4);
        CHECK(std::string(shown[0].kind) == "recv");
        CHECK(shown[0].late[0] == 1 << 2);
        CHECK(shown[0].bytes == 24);
        CHECK(shown[1].late[0] == (1 << 0 | 1 << 2));
        CHECK(has("for rank 2 (process "));
        CHECK(has(") in recv, 24 bytes"));
        for (int rank = 0; rank < 3; ++rank) CHECK(screen->late(rank) == 0);
    }

    TEST_CASE("ranks that wait in a collective name the one that is late") {
        for (const Kind kind : {Kind::kBarrier, Kind::kAllreduce}) {
            const Logged logged(LogLevel::kInfo);
            CHECK(failures_in_threads(3, 8 * kMiB, [&](RankContext& context) {
                      context.group.set_long_wait(std::chrono::milliseconds(1));
                      Call call;
                      call.kind = kind;
                      call.dtype = kernels::DType::kF32;
                      call.count = kind == Kind::kBarrier ? 0 : 100'000;
                      call.input = context.place(context.rank, 400'000);
                      call.output = const_cast<std::byte*>(call.input);
                      call.deadline = Clock::now() + std::chrono::seconds(60);
                      // Rank 1 comes when the others have said that it is late.
                      while (context.rank == 1 &&
                             !(has("rank 0 of 3: has waited") && has("rank 2 of 3: has waited"))) {
                          if (Clock::now() > call.deadline) return report(context, "not named");
                          std::this_thread::yield();
                      }
                      return context.group.run(call).ok();
                  }) == 0);
            CHECK(has("for rank 1 (process "));
            CHECK_FALSE(has("for rank 2 (process "));
            CHECK(has(kind == Kind::kBarrier ? ") in barrier, 0 bytes"
                                             : ") in allreduce, 400000 bytes"));
            CHECK(has("the wait for rank 1 ended after"));
        }
    }
}

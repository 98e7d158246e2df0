// The words of a shard: pins, writes, swaps.

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "libfabricshm/shm/flush_policy.hpp"
#include "libfabricshm/shm/shard_header.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;

namespace {

constexpr ShardKey kKey{7, 3};
constexpr std::uint64_t kSession = 42;

struct Fresh {
    Fresh() {
        format_shard(*header, kKey, 4096, 1, 8192);
        assign_reader(*header, 0, kSession);
    }
    Result<ShardPin> pin(std::uint64_t version = 0, Duration timeout = 0ms) const {
        return pin_shard(*header, kKey, 0, kSession, version, Clock::now() + timeout);
    }
    std::unique_ptr<ShardHeader> header = std::make_unique<ShardHeader>();
};

}  // namespace

TEST_SUITE("shm.shard_header") {
    TEST_CASE("the word counts moves and versions apart, and the move chooses the place") {
        ShardWord word;
        word = word.published().published();
        CHECK(word.version() == 2);
        CHECK(word.place() == 0);
        const ShardWord moved = word.moved();
        CHECK(moved.place() == 1);
        CHECK(moved.version() == 2);
        CHECK(moved.moved().place() == 0);
        ShardWord around{(ShardWord::kVersion - 1) & ~ShardWord::kWriting};  // the last move
        around = around.published().moved();
        CHECK(around.moves() == 0);
        CHECK(around.version() == 1);
    }

    TEST_CASE("a read finds the place of the last swap, one under way keeps its own") {
        const Fresh fresh;
        const auto before = fresh.pin();
        REQUIRE(before.ok());
        CHECK(before->offset == 8192);
        set_place(*fresh.header, 1, 2, 4096);
        REQUIRE(swap_places(*fresh.header, word_of(*fresh.header)));
        const auto after = fresh.pin();
        REQUIRE(after.ok());
        CHECK(after->arena_id == 2);
        CHECK(after->offset == 4096);
        CHECK(is_pinned(*fresh.header, 0, 0));
        CHECK(unpin_shard(*fresh.header, 0, kSession, *before));
        CHECK_FALSE(is_pinned(*fresh.header, 0, 0));
        CHECK(unpin_shard(*fresh.header, 0, kSession, *after));
        CHECK_FALSE(is_pinned(*fresh.header, 0, 1));
    }

    TEST_CASE("a session that lost its line changes nothing of its successor's pins") {
        const Fresh fresh;
        const auto old = fresh.pin();
        REQUIRE(old.ok());
        constexpr std::uint64_t kNext = kSession + 1;
        assign_reader(*fresh.header, 0, kNext);
        REQUIRE(pin_shard(*fresh.header, kKey, 0, kNext, 0, Clock::now()).ok());
        CHECK_FALSE(unpin_shard(*fresh.header, 0, kSession, *old));
        CHECK(is_pinned(*fresh.header, 0, 0));
        // The same with the line taken away after the old session has read whose it is.
        fresh.header->readers[0].session.store(kSession);
        CHECK_FALSE(unpin_shard(*fresh.header, 0, kSession, *old));
        CHECK(is_pinned(*fresh.header, 0, 0));
        CHECK(fresh.pin().error().code == Errc::kClosed);
        fresh.header->readers[0].session.store(kNext);
        CHECK(unpin_shard(*fresh.header, 0, kNext, *old));
        CHECK_FALSE(is_pinned(*fresh.header, 0, 0));
        // Removed once too often it stays at none.
        CHECK_FALSE(unpin_shard(*fresh.header, 0, kNext, *old));
        CHECK_FALSE(is_pinned(*fresh.header, 0, 0));
    }

    TEST_CASE("the first of the two, the owner's write or the swap, excludes the other") {
        const Fresh fresh;
        const ShardWord seen = word_of(*fresh.header);
        REQUIRE(begin_write(*fresh.header, kKey).ok());
        CHECK_FALSE(swap_places(*fresh.header, seen));
        CHECK_FALSE(swap_places(*fresh.header, word_of(*fresh.header)));
        CHECK(begin_write(*fresh.header, kKey).error().code == Errc::kBusy);
        CHECK(publish_shard(*fresh.header) == 1);
        CHECK_FALSE(swap_places(*fresh.header, seen));
        CHECK(swap_places(*fresh.header, word_of(*fresh.header)));
        const auto write = begin_write(*fresh.header, kKey);
        REQUIRE(write.ok());
        CHECK(write->word.place() == 1);
        CHECK(publish_shard(*fresh.header) == 2);
        CHECK(publish_shard(*fresh.header) == 0);
    }

    TEST_CASE("a read waits for its version and for the owner, up to its deadline") {
        const Fresh fresh;
        CHECK(fresh.pin(1).error().code == Errc::kTimeout);
        REQUIRE(begin_write(*fresh.header, kKey).ok());
        CHECK(fresh.pin(0).error().code == Errc::kTimeout);
        CHECK(publish_shard(*fresh.header) == 1);
        const auto pin = fresh.pin(1);
        REQUIRE(pin.ok());
        REQUIRE(begin_write(*fresh.header, kKey).ok());
        CHECK_FALSE(unpin_shard(*fresh.header, 0, kSession, *pin));
        CHECK_FALSE(is_pinned(*fresh.header, 0, 0));
    }

    TEST_CASE("what was retired or given to another session is not read") {
        const Fresh fresh;
        const auto pin = fresh.pin();
        REQUIRE(pin.ok());
        assign_reader(*fresh.header, 0, 99);
        CHECK(fresh.pin().error().code == Errc::kClosed);
        CHECK_FALSE(unpin_shard(*fresh.header, 0, kSession, *pin));
        CHECK_FALSE(is_pinned(*fresh.header, 0, 0));
        assign_reader(*fresh.header, 0, kSession);
        retire_shard(*fresh.header);
        CHECK(fresh.pin().error().code == Errc::kNotFound);
        CHECK(begin_write(*fresh.header, kKey).error().code == Errc::kNotFound);
    }

    // There is nothing to be marked there, so that the bytes may be another owner's by now.
    TEST_CASE("on memory that is not coherent a read of a shard that was freed does not count") {
        const Fresh fresh;
        const auto policy = make_policy(find_profile("clflush").value());
        const Visibility view(policy.get(), nullptr, 0);
        const auto pin = pin_shard(*fresh.header, kKey, 0, kSession, 0, Clock::now(), view);
        REQUIRE(pin.ok());
        CHECK(unpin_shard(*fresh.header, 0, kSession, *pin, view));
        retire_shard(*fresh.header);
        CHECK_FALSE(unpin_shard(*fresh.header, 0, kSession, *pin, view));
    }

    // The daemon's part and the owner's in threads of their own, so that the sanitizer sees them.
    // The elements are atomics: a seqlock's reader races by design, and drops what it read.
    TEST_CASE("readers see whole versions while one thread writes and another one moves") {
        const Fresh fresh;
        constexpr int kWords = 64;
        constexpr int kMoves = 300;
        std::vector<std::atomic<std::uint64_t>> copies[2] = {
            std::vector<std::atomic<std::uint64_t>>(kWords),
            std::vector<std::atomic<std::uint64_t>>(kWords)};
        std::atomic<bool> over{false};
        std::atomic<int> torn{0};
        std::atomic<int> whole{0};
        assign_reader(*fresh.header, 1, kSession);
        const auto read = [&](int slot) {
            while (!over.load()) {
                const auto pin =
                    pin_shard(*fresh.header, kKey, slot, kSession, 0, Clock::now() + 10s);
                if (!pin.ok()) continue;
                bool same = true;
                for (const auto& word : copies[pin->word.place()]) {
                    same = same && word.load(std::memory_order_relaxed) == pin->word.version();
                }
                const bool valid = unpin_shard(*fresh.header, slot, kSession, *pin);
                if (valid && !same) torn.fetch_add(1);
                if (valid && same) whole.fetch_add(1);
            }
        };
        std::vector<std::thread> threads;
        for (int slot = 0; slot < 2; ++slot) threads.emplace_back(read, slot);
        threads.emplace_back([&] {
            while (!over.load()) {
                const auto write = begin_write(*fresh.header, kKey);
                if (!write.ok()) continue;
                for (auto& word : copies[write->word.place()]) {
                    word.store(write->word.version() + 1, std::memory_order_relaxed);
                }
                publish_shard(*fresh.header);
                std::this_thread::yield();
            }
        });
        for (int moves = 0; moves < kMoves;) {
            const ShardWord seen = word_of(*fresh.header);
            if (seen.writing()) continue;
            const int next = 1 - seen.place();
            for (int i = 0; i < kWords; ++i) {
                copies[next][i].store(copies[1 - next][i].load(std::memory_order_relaxed),
                                      std::memory_order_relaxed);
            }
            if (!swap_places(*fresh.header, seen)) continue;
            ++moves;
            // The old copy is "freed": a session that still read it would see that.
            while (is_pinned(*fresh.header, 0, 1 - next) || is_pinned(*fresh.header, 1, 1 - next)) {
                std::this_thread::yield();
            }
            for (auto& word : copies[1 - next]) word.store(~0ULL, std::memory_order_relaxed);
        }
        while (whole.load() == 0) std::this_thread::yield();
        over.store(true);
        for (auto& thread : threads) thread.join();
        CHECK(torn.load() == 0);
        CHECK(whole.load() > 0);
    }
}

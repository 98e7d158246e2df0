#include "libfabricshm/collective/mailbox.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <thread>

#include <cstring>
#include <vector>

#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr Bytes kPerRank = 64 * kMiB;

Call message(Kind kind, int peer, int tag, std::vector<std::byte>& bytes) {
    Call call;
    call.kind = kind;
    call.peer = peer;
    call.tag = tag;
    call.input = bytes.data();
    call.output = bytes.data();
    call.count = bytes.size();
    call.deadline = Clock::now() + std::chrono::seconds(60);
    return call;
}

std::vector<std::byte> pattern(std::size_t size, int seed) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) {
        bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<std::size_t>(seed));
    }
    return bytes;
}

bool receives(RankContext& context, int peer, int tag, const std::vector<std::byte>& wanted) {
    std::vector<std::byte> got(wanted.size());
    const auto result = context.group.run(message(Kind::kRecv, peer, tag, got));
    if (!result.ok()) return complain(context, "receive: %s", describe(result.error()).c_str());
    return got == wanted || complain(context, "tag %d: wrong bytes", tag);
}

bool sends(RankContext& context, int peer, int tag, std::vector<std::byte> bytes) {
    const auto result = context.group.run(message(Kind::kSend, peer, tag, bytes));
    return result.ok() || complain(context, "send: %s", describe(result.error()).c_str());
}

}  // namespace

TEST_SUITE("collective.mailbox") {
    TEST_CASE("messages of every size arrive whole, from the arena and from elsewhere") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            for (const std::size_t size : {0, 1, 1000, 65536, 65537, 300000, 1500001}) {
                const auto bytes = pattern(size, 3);
                if (context.rank == 1) {
                    if (!receives(context, 0, 5, bytes) || !receives(context, 0, 6, bytes)) {
                        return false;
                    }
                    continue;
                }
                if (!sends(context, 1, 5, bytes)) return false;
                context.place(-1, 0);
                std::byte* in_arena = context.place(0, size + 1);
                if (size != 0) std::memcpy(in_arena, bytes.data(), size);
                std::vector<std::byte> none;
                Call call = message(Kind::kSend, 1, 6, none);
                call.input = in_arena;
                call.count = size;
                if (!context.group.run(call).ok()) return complain(context, "send in place");
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a receive takes the first message with its tag and leaves the others") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            if (context.rank == 0) {
                return sends(context, 1, 1, pattern(100, 1)) &&
                       sends(context, 1, 2, pattern(200, 2)) &&
                       sends(context, 1, 1, pattern(300, 3));
            }
            return receives(context, 0, 2, pattern(200, 2)) &&
                   receives(context, 0, 1, pattern(100, 1)) &&
                   receives(context, 0, 1, pattern(300, 3));
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("two ranks that both send first do not hang when one of the sends is started") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            const int other = 1 - context.rank;
            auto bytes = pattern(1 << 20, context.rank);
            auto request = context.group.start(message(Kind::kSend, other, 0, bytes));
            if (!request.ok()) return complain(context, "start");
            return receives(context, other, 0, pattern(1 << 20, other)) && (*request)->wait().ok();
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a receive from anybody says who sent") {
        const int wrong = failures_in_threads(4, kPerRank, [](RankContext& context) {
            if (context.rank != 0) {
                return sends(context, 0, 9, pattern(5000, context.rank));
            }
            std::vector<bool> seen(4, false);
            for (int i = 1; i < 4; ++i) {
                std::vector<std::byte> got(5000);
                auto request = context.group.start(message(Kind::kRecv, kAnyPeer, 9, got));
                if (!request.ok() || !(*request)->wait().ok()) return complain(context, "receive");
                const int from = (*request)->peer();
                if (from < 1 || from > 3 || got != pattern(5000, from)) {
                    return complain(context, "from %d", from);
                }
                seen[static_cast<std::size_t>(from)] = true;
            }
            return seen[1] && seen[2] && seen[3];
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("messages and collectives run beside each other") {
        const int wrong = failures_in_threads(3, kPerRank, [](RankContext& context) {
            const int next = (context.rank + 1) % 3;
            const int before = (context.rank + 2) % 3;
            for (int round = 0; round < 20; ++round) {
                auto bytes = pattern(70000, context.rank + round);
                auto request = context.group.start(message(Kind::kSend, next, round, bytes));
                Call barrier;
                barrier.deadline = Clock::now() + std::chrono::seconds(60);
                if (!request.ok()) return complain(context, "start");
                const auto met = context.group.run(barrier);
                if (!met.ok()) return complain(context, "%s", describe(met.error()).c_str());
                if (!receives(context, before, round, pattern(70000, before + round))) return false;
                const auto sent = (*request)->wait();
                if (!sent.ok()) return complain(context, "%s", describe(sent.error()).c_str());
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a message put aside in pieces goes to the receive that was there first") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            if (context.rank == 0) {
                return sends(context, 1, 7, pattern(900000, 1)) &&
                       sends(context, 1, 7, pattern(900000, 2)) &&
                       sends(context, 1, 5, pattern(10, 3));
            }
            std::vector<std::byte> five(10);
            std::vector<std::byte> first(900000);
            std::vector<std::byte> second(900000);
            auto wanted = context.group.start(message(Kind::kRecv, 0, 5, five));
            auto one = context.group.start(message(Kind::kRecv, 0, 7, first));
            auto two = context.group.start(message(Kind::kRecv, 0, 7, second));
            const bool all = (*one)->wait().ok() && (*two)->wait().ok() && (*wanted)->wait().ok();
            return (all && first == pattern(900000, 1) && second == pattern(900000, 2)) ||
                   complain(context, "messages changed places");
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("the rest of a message whose receive gave up is not taken for another message") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            auto large = pattern(Mailbox::kPiece * 3, 1);
            if (context.rank == 0) {
                // The receiver's deadline passes between the pieces or after them: both are fine.
                (void)context.group.run(message(Kind::kSend, 1, 4, large));
                return sends(context, 1, 0, pattern(Mailbox::kPiece, 2));
            }
            Call call = message(Kind::kRecv, 0, 4, large);
            call.deadline = Clock::now() + std::chrono::microseconds(200);
            const bool got = context.group.run(call).ok();
            (void)got;
            return receives(context, 0, 0, pattern(Mailbox::kPiece, 2));
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a message of another size is refused and the next one arrives") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            if (context.rank == 0) {
                return sends(context, 1, 0, pattern(64, 1)) && sends(context, 1, 0, pattern(32, 2));
            }
            std::vector<std::byte> got(32);
            const auto result = context.group.run(message(Kind::kRecv, 0, 0, got));
            return !result.ok() && result.error().code == Errc::kMismatch &&
                   receives(context, 0, 0, pattern(32, 2));
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("while a send waits for memory other messages go on") {
        TestArena arena(2, kPerRank);
        std::latch received(1);
        std::atomic<bool> in_time{true};
        const auto deadline = [] { return Clock::now() + std::chrono::seconds(60); };
        GroupPlace place = arena.place(0);
        place.allocate = [&, make = place.allocate](Bytes bytes) {
            // As if the daemon were away until the other message has come.
            while (!received.try_wait() && in_time) std::this_thread::yield();
            return make(bytes);
        };
        bool other_fine = false;
        std::thread other([&] {
            auto group = Group::attach(arena.place(1), deadline());
            if (!group.ok()) return;
            RankContext context = arena.context(**group);
            other_fine =
                sends(context, 0, 2, pattern(10, 2)) && receives(context, 0, 1, pattern(1000, 1));
        });
        auto group = Group::attach(place, deadline());
        REQUIRE(group.ok());
        RankContext context = arena.context(**group);
        bool sent = false;
        std::thread sender([&] { sent = sends(context, 1, 1, pattern(1000, 1)); });
        std::vector<std::byte> got(10);
        Call call = message(Kind::kRecv, 1, 2, got);
        call.deadline = Clock::now() + std::chrono::seconds(30);
        const auto result = (*group)->run(call);
        in_time = result.ok();
        received.count_down();
        sender.join();
        other.join();
        CHECK(result.ok());
        CHECK(got == pattern(10, 2));
        CHECK(sent);
        CHECK(other_fine);
    }

    TEST_CASE("waiting for a message ends at the deadline and leaves the group as it was") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            Call barrier;
            barrier.deadline = Clock::now() + std::chrono::seconds(60);
            if (context.rank == 0) return context.group.run(barrier).ok();
            std::vector<std::byte> got(32);
            Call call = message(Kind::kRecv, 0, 0, got);
            call.deadline = Clock::now() + std::chrono::milliseconds(20);
            const auto result = context.group.run(call);
            return !result.ok() && result.error().code == Errc::kTimeout &&
                   context.group.run(barrier).ok();
        });
        CHECK(wrong == 0);
    }
}

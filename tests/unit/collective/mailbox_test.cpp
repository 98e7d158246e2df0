#include "libfabricshm/collective/mailbox.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <latch>
#include <thread>

#include <cstring>
#include <functional>
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
    if (!result.ok()) return report(context, "receive: %s", describe(result.error()).c_str());
    return got == wanted || report(context, "tag %d: wrong bytes", tag);
}

bool sends(RankContext& context, int peer, int tag, std::vector<std::byte> bytes) {
    const auto result = context.group.run(message(Kind::kSend, peer, tag, bytes));
    return result.ok() || report(context, "send: %s", describe(result.error()).c_str());
}

bool meets(RankContext& context) {
    Call barrier;
    barrier.deadline = Clock::now() + std::chrono::seconds(60);
    const auto result = context.group.run(barrier);
    return result.ok() || report(context, "barrier: %s", describe(result.error()).c_str());
}

Result<void> runs_within(RankContext& context, Call call, Duration length) {
    call.deadline = Clock::now() + length;
    return context.group.run(call);
}

// What rank 1 may write, in its own view of the group block at the arena's start.
struct ChannelOfPeer {
    explicit ChannelOfPeer(RankContext& context)
        : layout(GroupLayout::of(context.world)), block(context.arena), view(context.view) {}

    /// Line `number` of the ring from rank 1 to rank 0.
    ChannelLine& line(std::uint64_t number) const {
        auto* lines = reinterpret_cast<ChannelLine*>(block + layout.channels);
        return lines[static_cast<std::size_t>(layout.world) * layout.channel_lines + number];
    }
    void publish(const void* data, Bytes bytes) const {
        view.publish(TouchPoint::kSent, data, bytes, 0);
    }

    GroupLayout layout;
    std::byte* block;
    Visibility view;
};

// Rank 1 does `harm` to its channel, then rank 0 receives: not for ever, and not a success.
Errc received_after(const std::function<void(RankContext&)>& harm) {
    std::atomic<int> code{0};
    const int wrong = failures_in_threads(2, kPerRank, [&](RankContext& context) {
        if (context.rank == 1) {
            harm(context);
            return meets(context) && meets(context);
        }
        if (!meets(context)) return false;
        std::vector<std::byte> got(600);
        Call call = message(Kind::kRecv, 1, 0, got);
        const auto result = runs_within(context, call, std::chrono::milliseconds(500));
        if (result.ok()) return report(context, "received garbage");
        code = static_cast<int>(result.error().code);
        const bool names = result.error().detail == 1;
        return (names || report(context, "%s", describe(result.error()).c_str())) && meets(context);
    });
    CHECK(wrong == 0);
    return static_cast<Errc>(code.load());
}

// The same where the harm is one line that passes for the next one.
Errc received_line(MessageWhat what, MessagePiece piece) {
    return received_after([=](RankContext& context) {
        const ChannelOfPeer channel(context);
        ChannelLine& line = channel.line(0);
        line.what = std::bit_cast<std::uint64_t>(what);
        std::memcpy(line.data, &piece, sizeof piece);
        line.number = 1;
        channel.publish(&line, sizeof line);
    });
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
                if (!context.group.run(call).ok()) return report(context, "send in place");
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("messages between buffers in the arena arrive whole, whichever side is first") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            for (const std::size_t size : {4097, 30001, 65536, 65537, 131072, 700001, 9000001}) {
                for (int turn = 0; turn < 4; ++turn) {
                    context.place(-1, 0);
                    std::byte* own = context.place(context.rank, size);
                    const auto bytes = pattern(size, turn);
                    std::vector<std::byte> none;
                    Call call = message(context.rank == 0 ? Kind::kSend : Kind::kRecv,
                                        1 - context.rank, 3, none);
                    call.input = call.output = own;
                    call.count = size;
                    std::memset(own, 0, size);
                    if (context.rank == 0) std::memcpy(own, bytes.data(), size);
                    if (!meets(context)) return false;
                    // In the last turns one of them comes late.
                    const auto late = Clock::now() + std::chrono::milliseconds(2);
                    while (turn >= 2 && turn - 2 == context.rank && Clock::now() < late) {
                    }
                    if (!context.group.run(call).ok()) return report(context, "message");
                    // The sender has its buffer back.
                    if (context.rank == 0) std::memset(own, 0xff, size);
                    const bool whole = std::memcmp(own, bytes.data(), size) == 0;
                    if (context.rank == 1 && !whole) return report(context, "wrong bytes");
                    if (!meets(context)) return false;
                }
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("small messages from the arena do not wait for their receiver") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            constexpr std::size_t kSize = 16384;
            context.place(-1, 0);
            std::byte* own = context.place(context.rank, kSize);
            std::vector<std::byte> none;
            Call call = message(Kind::kSend, 1 - context.rank, 0, none);
            call.input = call.output = own;
            call.count = kSize;
            for (int i = 0; i < 4; ++i) {
                const auto bytes = pattern(kSize, context.rank + i);
                std::memcpy(own, bytes.data(), kSize);
                if (!context.group.run(call).ok()) return report(context, "send");
            }
            if (!meets(context)) return false;
            for (int i = 0; i < 4; ++i) {
                if (!receives(context, 1 - context.rank, 0, pattern(kSize, 1 - context.rank + i))) {
                    return false;
                }
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a receive that is given up while its sender copies for it has its buffer later") {
        std::atomic<bool> given_up{false};
        const int wrong = failures_in_threads(2, kPerRank, [&](RankContext& context) {
            if (!context.view.coherent()) return true;  // there the receiver alone copies
            constexpr std::size_t kSize = 8 * kMiB;
            const ChannelOfPeer channel(context);
            ChannelLine& line = channel.line(0);
            if (context.rank == 1) {
                // As a sender that claimed a chunk and then lost its core.
                write_offer(line, {0, kSize, kSize}, kNoOffset);
                offer_in(line).claims = 1;
                line.what =
                    std::bit_cast<std::uint64_t>(MessageWhat{0, 0, MessageKind::kOffered, 1});
                line.number = 1;
                const bool has_met = meets(context);
                while (!given_up) std::this_thread::yield();
                offer_in(line).copied = 1;
                return has_met;
            }
            context.place(-1, 0);
            std::vector<std::byte> none;
            Call call = message(Kind::kRecv, 1, 0, none);
            call.output = context.place(0, kSize);
            call.count = kSize;
            // The offer is there: what was none when the time ran out would leave nothing to wait
            // for.
            const bool has_met = meets(context);
            const auto result = runs_within(context, call, std::chrono::milliseconds(100));
            if (result.ok() || result.error().code != Errc::kTimeout) {
                given_up = true;
                return report(context, "received what was not there");
            }
            const auto soon = context.group.quiesce(Clock::now());
            given_up = true;
            const bool waits =
                !soon.ok() && soon.error().code == Errc::kTimeout && soon.error().detail == 1;
            const auto later = context.group.quiesce(Clock::now() + std::chrono::seconds(60));
            return has_met && ((waits && later.ok()) || report(context, "quiesce"));
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
            if (!request.ok()) return report(context, "start");
            return receives(context, other, 0, pattern(1 << 20, other)) && (*request)->wait().ok();
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a receive from any rank names the sender") {
        const int wrong = failures_in_threads(4, kPerRank, [](RankContext& context) {
            if (context.rank != 0) {
                return sends(context, 0, 9, pattern(5000, context.rank));
            }
            std::vector<bool> seen(4, false);
            for (int i = 1; i < 4; ++i) {
                std::vector<std::byte> got(5000);
                auto request = context.group.start(message(Kind::kRecv, kAnyPeer, 9, got));
                if (!request.ok() || !(*request)->wait().ok()) return report(context, "receive");
                const int from = (*request)->peer();
                if (from < 1 || from > 3 || got != pattern(5000, from)) {
                    return report(context, "from %d", from);
                }
                seen[static_cast<std::size_t>(from)] = true;
            }
            return seen[1] && seen[2] && seen[3];
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a posted receive can be cancelled while no message has come for it") {
        const auto body = [](RankContext& context) {
            const auto wanted = pattern(5'000, 3);
            if (context.rank == 1) {
                return meets(context) && sends(context, 0, 1, wanted) &&
                       sends(context, 0, 1, wanted) && meets(context);
            }
            std::vector<std::byte> dropped(5'000);
            const auto request = context.group.start(message(Kind::kRecv, kAnyPeer, 1, dropped));
            if (!request.ok()) return report(context, "start");
            if (!context.group.cancel(**request)) return report(context, "not cancelled");
            if ((*request)->wait().ok()) return report(context, "received nevertheless");
            // What comes later is for others.
            if (!meets(context) || !receives(context, 1, 1, wanted)) return false;
            std::vector<std::byte> got(5'000);
            const auto second = context.group.start(message(Kind::kRecv, kAnyPeer, 1, got));
            if (!second.ok() || !(*second)->wait().ok()) return report(context, "second");
            if (context.group.cancel(**second)) return report(context, "cancelled too late");
            return meets(context) && got == wanted && dropped == std::vector<std::byte>(5'000);
        };
        CHECK(failures_in_threads(2, kPerRank, body) == 0);
        CHECK(failures_in_processes(2, kPerRank, body) == 0);
    }

    TEST_CASE("messages and collectives run at the same time") {
        const int wrong = failures_in_threads(3, kPerRank, [](RankContext& context) {
            const int next = (context.rank + 1) % 3;
            const int before = (context.rank + 2) % 3;
            for (int round = 0; round < 20; ++round) {
                auto bytes = pattern(70000, context.rank + round);
                auto request = context.group.start(message(Kind::kSend, next, round, bytes));
                Call barrier;
                barrier.deadline = Clock::now() + std::chrono::seconds(60);
                if (!request.ok()) return report(context, "start");
                const auto met = context.group.run(barrier);
                if (!met.ok()) return report(context, "%s", describe(met.error()).c_str());
                if (!receives(context, before, round, pattern(70000, before + round))) return false;
                const auto sent = (*request)->wait();
                if (!sent.ok()) return report(context, "%s", describe(sent.error()).c_str());
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a message kept aside in pieces goes to the receive that was there first") {
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
                   report(context, "messages changed places");
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

    TEST_CASE("a receive that gives up in the middle of a message leaves it to the next one") {
        constexpr int kMessages = 30;
        const auto sent = [](int i) { return pattern(Stage::kBytes * 2 + 13, i); };
        const int wrong = failures_in_threads(2, kPerRank, [&](RankContext& context) {
            if (context.rank == 0) {
                for (int i = 0; i < kMessages; ++i) {
                    if (!sends(context, 1, 4, sent(i))) return false;
                }
                return meets(context);
            }
            std::vector<std::byte> got(sent(0).size());
            const TimePoint end = Clock::now() + std::chrono::seconds(30);
            for (int i = 0; i < kMessages; ++i) {
                Result<void> result = Error{Errc::kTimeout, 0, ""};
                for (int tries = 0; !result.ok() && Clock::now() < end; ++tries) {
                    // Longer and longer, so that it ends on a slow machine, too.
                    const auto length = std::chrono::microseconds(10 + 10 * tries);
                    result = runs_within(context, message(Kind::kRecv, 0, 4, got), length);
                    if (!result.ok() && result.error().code != Errc::kTimeout) break;
                }
                if (!result.ok()) return report(context, "message %d did not come", i);
                if (got != sent(i)) return report(context, "not message %d", i);
            }
            return meets(context);
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

    TEST_CASE("a receive from a rank that filled its channels with garbage ends, and names it") {
        for (const int byte : {0x01, 0x7f, 0xff}) {
            CAPTURE(byte);
            const Errc code = received_after([&](RankContext& context) {
                const ChannelOfPeer channel(context);
                std::byte* from = channel.block + channel.layout.channels;
                const Bytes bytes = channel.layout.slots - channel.layout.channels;
                std::memset(from, byte, bytes);
                channel.publish(from, bytes);
            });
            CHECK((code == Errc::kCorrupt || code == Errc::kTimeout));
        }
    }

    // Where this number stands there was a count of pieces before, and the receiver took as many.
    TEST_CASE("a receive from a rank that says it sent a million million messages ends") {
        const Errc code = received_after([](RankContext& context) {
            const ChannelOfPeer channel(context);
            channel.line(0).number = std::uint64_t{1} << 40;
            channel.publish(&channel.line(0), sizeof(ChannelLine));
        });
        CHECK(code == Errc::kCorrupt);
    }

    TEST_CASE("a line that says what no sender says is refused, and names the peer") {
        const auto arena_end = static_cast<std::uint64_t>(-1);
        const auto piece = [](std::uint8_t first) {
            return MessageWhat{0, 0, MessageKind::kPiece, first};
        };
        CHECK(received_line({0, 600, MessageKind::kInline, 1}, {}) == Errc::kCorrupt);
        CHECK(received_line({0, 0xffff, MessageKind::kInline, 1}, {}) == Errc::kCorrupt);
        CHECK(received_line({0, 8, MessageKind::kInline, 0}, {}) == Errc::kCorrupt);
        CHECK(received_line({0, 100, MessageKind::kInline, 1}, {}) == Errc::kCorrupt);
        CHECK(received_line({0, 0, static_cast<MessageKind>(77), 1}, {}) == Errc::kCorrupt);
        CHECK(received_line(piece(1), {arena_end, 600, 600}) == Errc::kCorrupt);
        CHECK(received_line(piece(1), {0, arena_end, arena_end}) == Errc::kCorrupt);
        CHECK(received_line(piece(1), {0, 600, 10}) == Errc::kCorrupt);
        CHECK(received_line(piece(1), {0, 0, 600}) == Errc::kCorrupt);
        CHECK(received_line(piece(0), {0, 600, 600}) == Errc::kCorrupt);
        CHECK(received_line(piece(1), {0, 10, arena_end}) == Errc::kCorrupt);
        const auto line = [](MessageKind kind, std::uint8_t first) {
            return MessageWhat{0, 0, kind, first};
        };
        CHECK(received_line(line(MessageKind::kOffered, 0), {0, 600, 600}) == Errc::kCorrupt);
        CHECK(received_line(line(MessageKind::kOffered, 1), {0, 600, 1200}) == Errc::kCorrupt);
        CHECK(received_line(line(MessageKind::kMoved, 1), {arena_end, 600, 600}) == Errc::kCorrupt);
        CHECK(received_line(line(MessageKind::kClaimed, 1), {0, 600, 600}) == Errc::kCorrupt);
        CHECK(received_line(line(MessageKind::kShared, 1), {0, 600, 600}) == Errc::kCorrupt);
    }

    TEST_CASE("a send to a rank that takes more than was sent ends, and names it") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            if (context.rank == 1) {
                const GroupLayout layout = GroupLayout::of(2);
                auto* taken = reinterpret_cast<ChannelTaken*>(context.arena + layout.taken);
                taken[2].taken = std::uint64_t{1} << 40;
                context.view.publish(TouchPoint::kTaken, &taken[2], sizeof taken[2], 0);
                return meets(context) && meets(context);
            }
            if (!meets(context)) return false;
            auto bytes = pattern(8, 1);
            Result<void> result;
            for (int i = 0; i < 1000 && result.ok(); ++i) {
                result = runs_within(context, message(Kind::kSend, 1, 0, bytes),
                                     std::chrono::seconds(60));
            }
            const bool right =
                !result.ok() && result.error().code == Errc::kCorrupt && result.error().detail == 1;
            return (right || report(context, "not refused")) && meets(context);
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("ranks that all send some messages to all others and then receive do not wait") {
        for (int world = 2; world <= 8; ++world) {
            CAPTURE(world);
            const int wrong = failures_in_threads(world, 16 * kMiB, [](RankContext& context) {
                for (const int count : {3, 16}) {
                    for (int peer = 0; peer < context.world; ++peer) {
                        for (int i = 0; peer != context.rank && i < count; ++i) {
                            if (!sends(context, peer, i % 2, pattern(8, context.rank + i))) {
                                return false;
                            }
                        }
                    }
                    if (!meets(context)) return false;
                    for (int peer = 0; peer < context.world; ++peer) {
                        for (int i = 0; peer != context.rank && i < count; ++i) {
                            if (!receives(context, peer, i % 2, pattern(8, peer + i))) return false;
                        }
                    }
                }
                return true;
            });
            CHECK(wrong == 0);
        }
    }

    TEST_CASE("sixteen messages or 64 KiB wait in a channel whose receiver is elsewhere") {
        for (const std::size_t size : {0, 8, 48, 49, 216, 217, 4096, 9000, 21000, 65536}) {
            CAPTURE(size);
            const int count =
                static_cast<int>(std::min<std::size_t>(16, 65536 / std::max<std::size_t>(size, 1)));
            const int wrong = failures_in_threads(2, kPerRank, [&](RankContext& context) {
                for (int round = 0; round < 3; ++round) {
                    for (int i = 0; context.rank == 0 && i < count; ++i) {
                        if (!sends(context, 1, 0, pattern(size, i))) return false;
                    }
                    // The receiver is in a collective, which takes no messages.
                    if (!meets(context)) return false;
                    for (int i = 0; context.rank == 1 && i < count; ++i) {
                        if (!receives(context, 0, 0, pattern(size, i))) return false;
                    }
                    if (!meets(context)) return false;
                }
                return true;
            });
            CHECK(wrong == 0);
        }
    }

    TEST_CASE("a sender without room waits until its deadline, and nothing sent before is lost") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            const std::size_t size = context.world == 2 ? 100 : 0;
            std::atomic<int> sent{0};
            if (context.rank == 0) {
                auto bytes = pattern(size, 5);
                while (true) {
                    const auto result = runs_within(context, message(Kind::kSend, 1, 1, bytes),
                                                    std::chrono::milliseconds(20));
                    if (!result.ok() && result.error().code == Errc::kTimeout) break;
                    if (!result.ok() || ++sent > 1000) return report(context, "no end of room");
                }
            }
            if (!meets(context)) return false;
            if (context.rank == 0) {
                return sends(context, 1, 2, pattern(4, sent.load() & 0xff)) && meets(context);
            }
            int got = 0;
            std::vector<std::byte> last(4);
            auto end = context.group.start(message(Kind::kRecv, 0, 2, last));
            while (!(*end)->done()) {
            }
            while (true) {
                std::vector<std::byte> bytes(size);
                const auto result = runs_within(context, message(Kind::kRecv, 0, 1, bytes),
                                                std::chrono::milliseconds(20));
                if (!result.ok()) break;
                if (bytes != pattern(size, 5)) return report(context, "wrong bytes");
                ++got;
            }
            return (got >= 16 && last == pattern(4, got)) || report(context, "%d got", got)
                       ? meets(context)
                       : false;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("what no receive asks for is kept up to a limit, then its sender waits") {
        const int wrong = failures_in_threads(3, kPerRank, [](RankContext& context) {
            constexpr std::size_t kSize = 4096;
            constexpr int kFits = static_cast<int>(Mailbox::kMaxKeptUnasked / kSize);
            if (context.rank == 0) {
                auto bytes = pattern(kSize, 5);
                int sent = 0;
                // What fits may take its time: it is rank 1 that has to make room for it.
                while (runs_within(context, message(Kind::kSend, 1, 1, bytes),
                                   std::chrono::milliseconds(sent < kFits ? 60'000 : 100))
                           .ok()) {
                    ++sent;
                }
                const int most = kFits + static_cast<int>(Stage::kBytes / kSize);
                if (sent < kFits || sent > most) return report(context, "%d sent", sent);
                return sends(context, 2, 3, pattern(8, 1)) && sends(context, 1, 4, {}) &&
                       meets(context);
            }
            if (context.rank == 2) {
                return receives(context, 0, 3, pattern(8, 1)) &&
                       sends(context, 1, 3, pattern(8, 1)) && meets(context);
            }
            // Of rank 0 it wants nothing yet. What it asks for then stands behind all the others.
            return receives(context, 2, 3, pattern(8, 1)) && receives(context, 0, 4, {}) &&
                   meets(context);
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("many messages that came before they were asked for are found by tag") {
        constexpr int kMessages = 20000;
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            for (int tag = 0; context.rank == 0 && tag < kMessages; ++tag) {
                if (!sends(context, 1, tag, pattern(300, tag))) return false;
            }
            for (int tag = kMessages; context.rank == 1 && tag-- > 0;) {
                const bool any = tag % 2 == 0;
                if (!receives(context, any ? kAnyPeer : 0, tag, pattern(300, tag))) return false;
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("messages of one tag are received in order by name and from any peer alike") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            for (int i = 0; context.rank == 0 && i < 60; ++i) {
                const auto size = static_cast<std::size_t>(i % 3 == 0   ? 20
                                                           : i % 3 == 1 ? 150
                                                                        : 900);
                if (!sends(context, 1, 1, pattern(size, i))) return false;
            }
            for (int i = 0; context.rank == 1 && i < 60; ++i) {
                const auto size = static_cast<std::size_t>(i % 3 == 0   ? 20
                                                           : i % 3 == 1 ? 150
                                                                        : 900);
                if (!receives(context, i % 2 == 0 ? 0 : kAnyPeer, 1, pattern(size, i)))
                    return false;
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a receive from any peer does not leave one of them for last") {
        const int wrong = failures_in_threads(3, kPerRank, [](RankContext& context) {
            constexpr int kEach = 12;
            for (int i = 0; context.rank != 0 && i < kEach; ++i) {
                if (!sends(context, 0, 1, pattern(8, context.rank))) return false;
            }
            if (!meets(context)) return false;
            int of_first = 0;
            for (int i = 0; context.rank == 0 && i < 2 * kEach; ++i) {
                std::vector<std::byte> got(8);
                const auto result = context.group.run(message(Kind::kRecv, kAnyPeer, 1, got));
                if (!result.ok()) return report(context, "receive");
                of_first += got == pattern(8, 1) ? 1 : 0;
                const int share = i + 1 - of_first;
                if (i == kEach - 1 && (of_first < 4 || share < 4)) {
                    return report(context, "%d of the first", of_first);
                }
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("in a group of many ranks each finds the sender") {
        constexpr int kWorld = 20;
        const int wrong = failures_in_threads(kWorld, 2 * kMiB, [](RankContext& context) {
            for (int round = 0; round < 10; ++round) {
                const int next = (context.rank + 1) % kWorld;
                const int before = (context.rank + kWorld - 1) % kWorld;
                if (!sends(context, next, 1, pattern(40, context.rank))) return false;
                if (!receives(context, before, 1, pattern(40, before))) return false;
                if (context.rank != 0 && !sends(context, 0, 2, pattern(40, 7))) return false;
                for (int i = 1; context.rank == 0 && i < kWorld; ++i) {
                    if (!receives(context, kAnyPeer, 2, pattern(40, 7))) return false;
                }
            }
            return true;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("threads of one rank receive from one peer, each its own tags") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            std::atomic<int> failed{0};
            std::vector<std::thread> threads;
            for (int tag = 0; tag < 3; ++tag) {
                threads.emplace_back([&context, &failed, tag] {
                    for (int i = 0; i < 50; ++i) {
                        const auto bytes = pattern(static_cast<std::size_t>(i * 37), tag + i);
                        const bool fine = context.rank == 0 ? sends(context, 1, tag, bytes)
                                                            : receives(context, 0, tag, bytes);
                        failed += fine ? 0 : 1;
                    }
                });
            }
            for (std::thread& thread : threads) thread.join();
            return failed == 0;
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("what a rank sent before it left is received, and then its leaving") {
        TestArena arena(2, kPerRank);
        std::latch left(1);
        const auto deadline = [] { return Clock::now() + std::chrono::seconds(60); };
        bool sent = true;
        std::thread sender([&] {
            auto group = Group::attach(arena.place(0), deadline());
            if (group.ok()) {
                RankContext context = arena.context(**group);
                for (int i = 0; i < 16; ++i) sent = sends(context, 1, 0, pattern(48, i)) && sent;
                group->reset();
            }
            left.count_down();
        });
        auto group = Group::attach(arena.place(1), deadline());
        left.wait();
        sender.join();
        REQUIRE(group.ok());
        CHECK(sent);
        RankContext context = arena.context(**group);
        for (int i = 0; i < 16; ++i) CHECK(receives(context, 0, 0, pattern(48, i)));
        std::vector<std::byte> more(48);
        const auto result = (*group)->run(message(Kind::kRecv, 0, 0, more));
        REQUIRE_FALSE(result.ok());
        CHECK(result.error().code == Errc::kPeer);
        CHECK(result.error().detail == 0);
    }

    TEST_CASE("a message whose memory its sender took along is an error, never other bytes") {
        TestArena arena(2, kPerRank);
        std::latch left(1);
        const auto deadline = [] { return Clock::now() + std::chrono::seconds(60); };
        std::thread sender([&] {
            auto group = Group::attach(arena.place(0), deadline());
            if (group.ok()) {
                RankContext context = arena.context(**group);
                (void)sends(context, 1, 0, pattern(5000, 1));
                // A dead rank is not waited for.
                context.mark_dead(1);
                group->reset();
            }
            left.count_down();
        });
        auto group = Group::attach(arena.place(1), deadline());
        left.wait();
        sender.join();
        REQUIRE(group.ok());
        std::vector<std::byte> got(5000);
        const auto result = (*group)->run(message(Kind::kRecv, 0, 0, got));
        REQUIRE_FALSE(result.ok());
        CHECK(result.error().code == Errc::kPeer);
        CHECK(result.error().detail == 0);
    }
}

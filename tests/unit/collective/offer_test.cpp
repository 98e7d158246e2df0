#include "libfabricshm/collective/offer.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <thread>
#include <vector>

using namespace fabricshm;

namespace {

constexpr MessageWhat kOffer{7, 0, MessageKind::kOffered, 1};

MessageKind kind_of(const ChannelLine& line) {
    return std::bit_cast<MessageWhat>(line.what.load()).kind;
}

void offer(ChannelLine& line, Bytes bytes) {
    write_offer(line, {0, bytes, bytes}, kNoOffset);
    line.what = std::bit_cast<std::uint64_t>(kOffer);
}

}  // namespace

TEST_SUITE("collective.offer") {
    TEST_CASE("what is claimed is not moved, and what is moved is not claimed") {
        ChannelLine line{};
        offer(line, 8);
        CHECK(claim_offer(line, kOffer, kNoOffset) == MessageKind::kClaimed);
        CHECK_FALSE(move_offer(line));
        offer(line, 8);
        CHECK(move_offer(line));
        CHECK(claim_offer(line, kOffer, kNoOffset) == MessageKind::kMoved);
        CHECK(kind_of(line) == MessageKind::kMoved);
    }

    TEST_CASE("a receiver and a sender that come at once do not both have the message") {
        ChannelLine line{};
        for (int round = 0; round < 2000; ++round) {
            offer(line, 8);
            std::atomic<int> ready{0};
            const auto together = [&] {
                ++ready;
                while (ready.load() != 2) {
                }
            };
            bool moved = false;
            std::thread sender([&] {
                together();
                moved = move_offer(line);
            });
            together();
            const MessageKind kind = claim_offer(line, kOffer, kNoOffset);
            sender.join();
            REQUIRE(kind == (moved ? MessageKind::kMoved : MessageKind::kClaimed));
        }
    }

    TEST_CASE("both sides together copy every chunk once") {
        const Bytes bytes = 5 * kShareChunk + 100;
        std::vector<std::byte> from(bytes);
        for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
        for (const int of_sender : {0, 1, 3, 6}) {
            CAPTURE(of_sender);
            ChannelLine line{};
            offer(line, bytes);
            CHECK(claim_offer(line, kOffer, 64) == MessageKind::kShared);
            std::vector<std::byte> to(bytes);
            SharedCopy sender(line, SharedCopy::Side::kSender, to.data(), from.data(), bytes,
                              false);
            SharedCopy receiver(line, SharedCopy::Side::kReceiver, to.data(), from.data(), bytes,
                                false);
            int chunks = 0;
            for (int i = 0; i < of_sender; ++i) chunks += sender.copy_next() ? 1 : 0;
            while (receiver.copy_next()) ++chunks;
            CHECK(chunks == 6);
            CHECK_FALSE(sender.copy_next());
            CHECK(to == from);
        }
    }

    TEST_CASE("after the receiver gave up the sender claims nothing more") {
        const Bytes bytes = 4 * kShareChunk;
        std::vector<std::byte> from(bytes);
        std::vector<std::byte> to(bytes);
        ChannelLine line{};
        offer(line, bytes);
        SharedCopy sender(line, SharedCopy::Side::kSender, to.data(), from.data(), bytes, false);
        SharedCopy receiver(line, SharedCopy::Side::kReceiver, to.data(), from.data(), bytes,
                            false);
        CHECK(sender.copy_next());
        CHECK(sender.copy_next());
        CHECK(receiver.copy_next());
        CHECK(receiver.close() == 2);
        CHECK_FALSE(sender.copy_next());
    }
}

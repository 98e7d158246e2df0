#include "libfabricshm/shm/group_block.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>

using namespace fabricshm;

namespace {

struct Free {
    void operator()(std::byte* block) const { std::free(block); }
};

std::unique_ptr<std::byte, Free> dirty_block(int world) {
    const Bytes bytes = group_block_bytes(world);
    auto* block = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
    std::fill(block, block + bytes, std::byte{0xee});
    return std::unique_ptr<std::byte, Free>(block);
}

RankWords* ranks_of(std::byte* block, int world) {
    return reinterpret_cast<RankWords*>(block + GroupLayout::of(world).ranks);
}

}  // namespace

TEST_SUITE("shm.group_block") {
    TEST_CASE("the parts of the layout follow each other without overlap for every world size") {
        for (int world = 1; world <= 256; ++world) {
            CAPTURE(world);
            const GroupLayout layout = GroupLayout::of(world);
            const auto ranks = static_cast<Bytes>(world);
            CHECK(layout.ranks >= sizeof(GroupHeader));
            CHECK(layout.tiny >= layout.ranks + ranks * sizeof(RankWords));
            CHECK(layout.channels >= layout.tiny + ranks * kTinyTurns * sizeof(TinySlot));
            const Bytes pairs = ranks * ranks;
            CHECK(layout.channel_lines >= 16);
            CHECK(layout.channel_lines <= 64);
            CHECK((layout.channel_lines & (layout.channel_lines - 1)) == 0);
            CHECK(layout.taken ==
                  layout.channels + pairs * layout.channel_lines * sizeof(ChannelLine));
            CHECK(layout.calls >= layout.taken + pairs * sizeof(ChannelTaken));
            CHECK(layout.slots >= layout.calls + ranks * sizeof(ChannelCalls));
            CHECK(layout.posts == layout.slots + ranks * 2 * layout.slot_bytes);
            CHECK(layout.post_bytes >= kKiB);
            CHECK(layout.post_bytes % kCachePair == 0);
            CHECK(layout.total >= layout.posts + ranks * kTinyTurns * layout.post_stride);
            CHECK(layout.tree >= layout.posts + ranks * kTinyTurns * layout.post_stride);
            CHECK(layout.tree_posts == layout.tree + ranks * sizeof(TreeWords));
            CHECK(layout.tree_bytes >= kMinTreeBytes);
            CHECK(layout.tree_lines * kCacheLine >= 16 + layout.tree_bytes);
            CHECK(layout.tree_buffers >=
                  layout.tree_posts + kMaxTreeHeight * ranks * layout.tree_lines * kCacheLine);
            CHECK(layout.total >= layout.tree_buffers + 2 * ranks * sizeof(TreeBuffers));
            CHECK(layout.slot_bytes % 4096 == 0);
            CHECK(layout.total % 4096 == 0);
        }
    }

    TEST_CASE("a formatted block starts with all clocks at zero, whatever was there before") {
        const auto block = dirty_block(5);
        format_group_block(block.get(), {7, 3, 5});
        const auto* header = reinterpret_cast<const GroupHeader*>(block.get());
        CHECK(header->magic == kGroupMagic);
        CHECK(header->group_id == 7);
        CHECK(header->epoch == 3);
        CHECK(header->broken.load() == 0);
        for (int rank = 0; rank < 5; ++rank) {
            CHECK(ranks_of(block.get(), 5)[rank].clock.load() == 0);
            CHECK(ranks_of(block.get(), 5)[rank].dead.load() == 0);
        }
    }

    TEST_CASE("marking a rank dead touches that rank alone, and may be done twice") {
        const auto block = dirty_block(3);
        format_group_block(block.get(), {1, 1, 3});
        mark_rank_dead(block.get(), 3, 1);
        mark_rank_dead(block.get(), 3, 1);
        CHECK(ranks_of(block.get(), 3)[0].dead.load() == 0);
        CHECK(ranks_of(block.get(), 3)[1].dead.load() == 1);
        CHECK(ranks_of(block.get(), 3)[2].dead.load() == 0);
    }

    TEST_CASE("the first reason why a group broke stays") {
        const auto block = dirty_block(2);
        format_group_block(block.get(), {1, 1, 2});
        break_group(block.get(), 2, Errc::kPeer, 1);
        break_group(block.get(), 2, Errc::kTimeout, 0);
        const auto* header = reinterpret_cast<const GroupHeader*>(block.get());
        CHECK((header->broken.load() & 0xffffffff) == static_cast<std::uint64_t>(Errc::kPeer));
        CHECK((header->broken.load() >> 32) == 1);
    }
}

#include "libfabricshm/shm/group_block.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <new>

namespace fabricshm {

namespace {

// All slots of a group together, and the bounds of one: a slot should hold a piece that is large
// enough to hide a barrier, and all slots of a small group should stay in the last-level cache.
constexpr Bytes kSlotBudget = 16 * kMiB;
constexpr Bytes kMinSlot = 64 * kKiB;
constexpr Bytes kMaxSlot = 1 * kMiB;

// Likewise for the posts next to the tiny slots: all of a rank's should stay in the second-level
// cache.
constexpr Bytes kPostBudget = 8 * kMiB;
constexpr Bytes kMinPost = 1 * kKiB;
constexpr Bytes kMaxPost = 16 * kKiB;
// Between two posts, so that short ones in turn begin in different sets of the first-level cache.
constexpr Bytes kPostShift = 5 * kCachePair;

// All rings together. Sixteen lines are what senders are promised; with four times as many also
// messages of some lines fit sixteen times.
constexpr Bytes kChannelBudget = 8 * kMiB;
constexpr std::uint64_t kMinChannelLines = 16;
constexpr std::uint64_t kMaxChannelLines = 64;

void wake_all(std::atomic<std::uint64_t>& word) noexcept {
    // The futex is the low half: x86 is little-endian, and the half changes with every step.
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// The sleepers count of a word is in the block and therefore not believed here: wake regardless.
void wake_everybody(std::byte* block, int world) noexcept {
    const GroupLayout layout = GroupLayout::of(world);
    wake_all(reinterpret_cast<GroupHeader*>(block)->command);
    auto* ranks = reinterpret_cast<RankWords*>(block + layout.ranks);
    auto* tree = reinterpret_cast<TreeWords*>(block + layout.tree);
    for (int rank = 0; rank < world; ++rank) {
        wake_all(ranks[rank].clock);
        wake_all(ranks[rank].bell);
        wake_all(tree[rank].release.flag);
    }
}

}  // namespace

GroupLayout GroupLayout::of(int world) noexcept {
    const auto ranks = static_cast<Bytes>(world);
    GroupLayout layout;
    layout.world = world;
    layout.ranks = sizeof(GroupHeader);
    layout.tiny = layout.ranks + ranks * sizeof(RankWords);
    layout.channels = layout.tiny + ranks * kTinyTurns * sizeof(TinySlot);
    const Bytes pairs = ranks * ranks;
    const std::uint64_t fair_lines = std::bit_floor(kChannelBudget / (pairs * sizeof(ChannelLine)));
    layout.channel_lines = std::clamp(fair_lines, kMinChannelLines, kMaxChannelLines);
    layout.taken = layout.channels + pairs * layout.channel_lines * sizeof(ChannelLine);
    layout.calls = round_up(layout.taken + pairs * sizeof(ChannelTaken), kCachePair);
    layout.slots = round_up(layout.calls + ranks * sizeof(ChannelCalls), 4096);
    const Bytes fair = kSlotBudget / (2 * ranks) / 4096 * 4096;
    layout.slot_bytes = std::clamp(fair, kMinSlot, kMaxSlot);
    layout.posts = layout.slots + ranks * 2 * layout.slot_bytes;
    const Bytes fair_post = kPostBudget / (kTinyTurns * ranks) / kCachePair * kCachePair;
    layout.post_bytes = std::clamp(fair_post, kMinPost, kMaxPost);
    layout.post_stride = layout.post_bytes + kPostShift;
    layout.tree = round_up(layout.posts + ranks * kTinyTurns * layout.post_stride, 4096);
    layout.tree_bytes = tree_bytes_for(world);
    layout.tree_lines = tree_lines_for(layout.tree_bytes);
    layout.tree_posts = layout.tree + ranks * sizeof(TreeWords);
    layout.tree_buffers =
        layout.tree_posts + kMaxTreeHeight * ranks * layout.tree_lines * sizeof(TreePost);
    layout.total = round_up(layout.tree_buffers + 2 * ranks * sizeof(TreeBuffers), 4096);
    return layout;
}

Bytes group_block_bytes(int world) noexcept {
    return GroupLayout::of(world).total;
}

void format_group_block(std::byte* block, const GroupBlockInfo& info,
                        const Visibility& view) noexcept {
    const GroupLayout layout = GroupLayout::of(info.world);
    // Slots and posts hold data only, never flags, so what they held before does no harm.
    std::memset(block, 0, layout.slots);
    // Only used where hosts share caches: not published.
    std::memset(block + layout.tree, 0, layout.total - layout.tree);
    auto* header = reinterpret_cast<GroupHeader*>(block);
    header->version = kGroupVersion;
    header->world = static_cast<std::uint32_t>(info.world);
    header->group_id = info.group_id;
    header->epoch = info.epoch;
    header->slot_bytes = layout.slot_bytes;
    header->magic = kGroupMagic;
    view.publish(TouchPoint::kBlockFormat, block, layout.slots);
}

void mark_rank_dead(std::byte* block, int world, int rank, const Visibility& view) noexcept {
    const GroupLayout layout = GroupLayout::of(world);
    auto* ranks = reinterpret_cast<RankWords*>(block + layout.ranks);
    // No data hangs on this flag; the store must only come before the wake, and the system call
    // that wakes orders them.
    ranks[rank].dead.store(1, std::memory_order_release);
    view.publish(TouchPoint::kDead, &ranks[rank].dead, kCacheLine, rank);
    wake_everybody(block, world);
}

void break_group(std::byte* block, int world, Errc code, int rank) noexcept {
    auto* header = reinterpret_cast<GroupHeader*>(block);
    const std::uint64_t reason = failure_reason(code, rank);
    std::uint64_t nothing = 0;
    // First come, first served: all survivors then name the same rank. Acquire-release, since the
    // loser of the race reads what the winner wrote.
    header->broken.compare_exchange_strong(nothing, reason, std::memory_order_acq_rel);
    wake_everybody(block, world);
}

}  // namespace fabricshm

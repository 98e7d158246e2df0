// Groups along a tree, between threads. That all of unit.collective.group holds for them, too, is
// unit.tree.collective.group.

#include "libfabricshm/collective/tree.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "libfabricshm/collective/tuning.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/collective_cases.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr Bytes kPerRank = 4 * kMiB;

TimePoint soon() {
    return Clock::now() + std::chrono::seconds(60);
}

/// The lines of posts and releases that a rank read, however often.
struct Lines final : VisibilityPolicy {
    void publish(const Access&) noexcept override {}
    void acquire(const Access& access) noexcept override {
        if (access.touch != TouchPoint::kTreeRead) return;
        for (Bytes at = 0; at < access.bytes; at += kCacheLine) {
            seen.insert((access.offset + at) / kCacheLine);
        }
    }
    bool coherent() const noexcept override { return true; }
    std::set<Bytes> seen;
};

struct TreeGroup {
    int world;
    std::vector<RankPlace> places = {};  // where the ranks say that they run; empty: where they do
    std::vector<Lines>* lines = nullptr;
    std::uint64_t tree_world = 2;

    int failures(const Body& body) {
        Tuning tuning = machine_tuning(world);
        tuning.tree_world = tree_world;
        TestArena arena(world, kPerRank, {});
        std::atomic<int> count{0};
        std::vector<std::thread> ranks;
        for (int rank = 0; rank < world; ++rank) {
            ranks.emplace_back([&, rank] {
                const auto at = static_cast<std::size_t>(rank);
                GroupPlace place = arena.place(rank);
                place.tuning = &tuning;
                if (!places.empty()) place.runs_at = &places[at];
                if (lines != nullptr) place.visibility = &(*lines)[at];
                auto group = Group::attach(place, soon());
                if (!group.ok()) {
                    ++count;
                    return;
                }
                RankContext context = arena.context(**group);
                count += body(context) ? 0 : 1;
            });
        }
        for (std::thread& rank : ranks) rank.join();
        return count;
    }
};

/// Ranks dealt out one by one over nodes and caches, so that none is next to its neighbour.
std::vector<RankPlace> dealt_out(int world) {
    std::vector<RankPlace> places;
    for (int rank = 0; rank < world; ++rank) places.push_back({rank % 2, rank % 5});
    return places;
}

Call allreduce_of(std::uint64_t count, const std::byte* input, std::byte* output) {
    Call call;
    call.kind = Kind::kAllreduce;
    call.dtype = kernels::DType::kF32;
    call.count = count;
    call.input = input;
    call.output = output;
    call.deadline = soon();
    return call;
}

/// Of values that give another sum in another order.
float value_of(int rank, std::uint64_t index, int round) {
    return std::ldexp(1.0F + static_cast<float>(rank * 7 % 11) / 13.0F,
                      static_cast<int>((static_cast<std::uint64_t>(rank) * 5 + index) % 23)) *
               (rank % 3 == 0 ? -1.0F : 1.0F) +
           static_cast<float>(round);
}

bool sums_in_rank_order(RankContext& context, std::uint64_t count) {
    for (int round = 0; round < 3; ++round) {
        std::vector<float> input(count);
        std::vector<float> output(count);
        for (std::uint64_t i = 0; i < count; ++i) input[i] = value_of(context.rank, i, round);
        const auto result =
            context.group.run(allreduce_of(count, reinterpret_cast<std::byte*>(input.data()),
                                           reinterpret_cast<std::byte*>(output.data())));
        if (!result.ok()) return report(context, "%s", describe(result.error()).c_str());
        for (std::uint64_t i = 0; i < count; ++i) {
            float sum = value_of(0, i, round);
            for (int rank = 1; rank < context.world; ++rank) sum += value_of(rank, i, round);
            if (std::memcmp(&sum, &output[i], sizeof sum) != 0) {
                return report(context, "element %d of %d", static_cast<int>(i),
                              static_cast<int>(count));
            }
        }
    }
    return true;
}

/// Each rank in turn has other buffers than before, all others the same.
bool follows_buffers(RankContext& context) {
    constexpr std::uint64_t kCount = 1024;
    std::byte* places[4];
    for (std::byte*& place : places) place = context.place(context.rank, kCount * 4);
    for (int round = 0; round < 3 * context.world; ++round) {
        const bool other = round % context.world == context.rank;
        auto* input = reinterpret_cast<float*>(places[other ? 2 : 0]);
        auto* output = reinterpret_cast<float*>(places[other && round % 2 == 0 ? 3 : 1]);
        std::fill_n(input, kCount, static_cast<float>(round));
        std::fill_n(output, kCount, -1.0F);
        const auto result = context.group.run(
            allreduce_of(kCount, places[other ? 2 : 0], reinterpret_cast<std::byte*>(output)));
        if (!result.ok()) return report(context, "%s", describe(result.error()).c_str());
        const auto expected = static_cast<float>(round * context.world);
        if (!std::all_of(output, output + kCount, [&](float sum) { return sum == expected; })) {
            return report(context, "round %d", round);
        }
    }
    return true;
}

}  // namespace

TEST_SUITE("collective.tree") {
    TEST_CASE("every kind and size gives the right bytes, wherever the ranks run") {
        for (const int world : {2, 8, 9, 13}) {
            TreeGroup group{world, dealt_out(world)};
            CHECK(group.failures([](RankContext& context) {
                for (const Kind kind :
                     {Kind::kAllreduce, Kind::kBarrier, Kind::kAllGather, Kind::kBroadcast,
                      Kind::kReduceScatter, Kind::kAllreduce, Kind::kGather, Kind::kAllToAll,
                      Kind::kScan, Kind::kExscan}) {
                    for (const std::uint64_t count : {0, 1, 10, 11, 12, 30, 140, 300, 3000}) {
                        for (const bool uneven : {false, true}) {
                            CollectiveCase wanted;
                            wanted.kind = kind;
                            wanted.count = count;
                            wanted.root = context.world - 1;
                            wanted.uneven = uneven && kind == Kind::kAllGather;
                            wanted.placement =
                                count % 2 == 0 ? Placement::kArena : Placement::kPrivate;
                            if (!run_case(context, wanted)) return false;
                        }
                    }
                }
                return true;
            }) == 0);
        }
    }

    TEST_CASE("sums are those of the order of ranks, bit by bit, wherever the ranks run") {
        for (const std::uint64_t tree_world : {2, 1000}) {
            for (const std::uint64_t count : {1, 2, 7, 16, 60, 137, 500}) {
                CAPTURE(tree_world);
                CAPTURE(count);
                TreeGroup group{11, dealt_out(11), nullptr, tree_world};
                CHECK(group.failures([&](RankContext& context) {
                    return sums_in_rank_order(context, count);
                }) == 0);
            }
        }
    }

    TEST_CASE("a rank that comes with other buffers is noticed by all, and only then") {
        TreeGroup group{10, dealt_out(10)};
        CHECK(group.failures(follows_buffers) == 0);
    }

    TEST_CASE("with 64 ranks none reads more than some twenty lines for 8 bytes") {
        std::vector<Lines> lines(64);
        TreeGroup group{64, {}, &lines};
        CHECK(group.failures([](RankContext& context) {
            std::byte bytes[8]{};
            return context.group.run(allreduce_of(2, bytes, bytes)).ok();
        }) == 0);
        std::size_t most = 0;
        std::size_t all = 0;
        for (const Lines& rank : lines) {
            most = std::max(most, rank.seen.size());
            all += rank.seen.size();
        }
        CHECK(most <= 8 * 2);
        CHECK(all <= 63 + 63 + 8);
    }

    TEST_CASE("ranks that call different operations all get an error") {
        // Rank 1 and 9 are above others, 0 is above all; 5 has none below.
        for (const int stray : {0, 1, 5, 9}) {
            for (const Kind kind : {Kind::kBarrier, Kind::kReduceScatter, Kind::kAllGather}) {
                CAPTURE(stray);
                TreeGroup group{16};
                CHECK(group.failures([&](RankContext& context) {
                    std::byte input[16 * 16]{};
                    std::byte output[16 * 16]{};
                    Call call = allreduce_of(4, input, output);
                    if (context.rank == stray) call.kind = kind;
                    const auto result = context.group.run(call);
                    return !result.ok() && result.error().code == Errc::kMismatch;
                }) == 0);
            }
        }
    }

    TEST_CASE(
        "a rank that waits for a root that needs no bytes of others and went on gets an error") {
        for (const int stray : {0, 1, 9}) {
            CAPTURE(stray);
            TreeGroup group{16};
            CHECK(group.failures([&](RankContext& context) {
                std::byte buffer[64]{};
                Call call = allreduce_of(2, buffer, buffer);
                if (context.rank == stray) {
                    call.kind = Kind::kBroadcast;
                    call.root = stray;
                    return context.group.run(call).ok() ||
                           context.group.run(call).error().code == Errc::kMismatch;
                }
                const auto result = context.group.run(call);
                const bool told = !result.ok() && (result.error().code == Errc::kMismatch ||
                                                   result.error().code == Errc::kPeer);
                return told || report(context, "%s", describe(result.error()).c_str());
            }) == 0);
        }
    }

    TEST_CASE("a timeout names the rank that did not come, not the one above it") {
        constexpr int kLate = 13;
        std::atomic<int> named{-1};
        std::atomic<int> ended{0};
        TreeGroup group{20, dealt_out(20)};
        const std::vector<TreeNode> nodes = build_tree(group.places).nodes;
        std::set<int> held_up{kLate};
        for (int above = nodes[kLate].parent; above >= 0;) {
            held_up.insert(above);
            above = nodes[static_cast<std::size_t>(above)].parent;
        }
        REQUIRE(held_up.size() > 2);
        // Of two ranks that have not come either may be named, so all but one come first.
        const auto await_others = [&](const RankContext& context) {
            const auto* words = reinterpret_cast<const RankWords*>(
                context.arena + GroupLayout::of(context.world).ranks);
            const std::uint64_t before = words[0].clock.load();
            for (int rank = 0; rank < context.world; ++rank) {
                if (held_up.contains(rank)) continue;
                while (words[rank].clock.load() <= before) std::this_thread::yield();
            }
        };
        CHECK(group.failures([&](RankContext& context) {
            std::byte buffer[8]{};
            Call call = allreduce_of(2, buffer, buffer);
            if (!context.group.run(call).ok()) return false;
            if (context.rank == kLate) {
                while (ended != 19) std::this_thread::yield();
                return true;
            }
            // Rank 0 gives up first.
            if (context.rank == 0) {
                await_others(context);
                call.deadline = Clock::now() + std::chrono::milliseconds(50);
            }
            const auto result = context.group.run(call);
            if (context.rank == 0 && !result.ok() && result.error().code == Errc::kTimeout) {
                named = result.error().detail;
            }
            ++ended;
            return !result.ok();
        }) == 0);
        CHECK(named == kLate);
    }

    TEST_CASE("a rank that leaves ends the waits of all, by its name") {
        for (const int gone : {1, 4, 15}) {
            CAPTURE(gone);
            TreeGroup group{16};
            CHECK(group.failures([&](RankContext& context) {
                std::byte buffer[8]{};
                const Call call = allreduce_of(2, buffer, buffer);
                if (!context.group.run(call).ok()) return false;
                if (context.rank == gone) return true;
                const auto result = context.group.run(call);
                const bool told = !result.ok() && result.error().code == Errc::kPeer &&
                                  result.error().detail == gone;
                return told || report(context, "%s", describe(result.error()).c_str());
            }) == 0);
        }
    }
}

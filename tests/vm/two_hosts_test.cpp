// Two hosts and one pool: two virtual machines whose DAX device is the same memory. Host A's
// fabricd owns the device; host B finds A's arena by name in the catalogue. Neither kernel knows of
// the other: no futex, no descriptor and no signal crosses, only bytes that are published and
// acquired.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>

#include "libfabricshm/machine/dax_device.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/collective_cases.hpp"
#include "tests/support/job.hpp"
#include "tests/support/pool_choice.hpp"

using namespace fabricshm;
using namespace test_support;
using namespace std::chrono_literals;

namespace {

constexpr int kWorld = 2;
constexpr Bytes kArenaBytes = 96 * kMiB;
constexpr Bytes kPerRank = 24 * kMiB;
constexpr Bytes kRound = kMiB;
constexpr int kRounds = 16;
constexpr std::uint64_t kReady = 0x7964616572;
constexpr auto kTimeout = 300s;

/// What hosts without common caches have to do; here, where all memory is coherent, it proves that
/// groups work when they are configured as apart.
class FlushPolicy final : public VisibilityPolicy {
  public:
    void publish(const Access& access) noexcept override { flush(access.data, access.bytes); }
    void acquire(const Access& access) noexcept override { flush(access.data, access.bytes); }
    bool coherent() const noexcept override { return false; }

  private:
    // Writes back and drops each line. The fences keep the flushes between the accesses around
    // them.
    static void flush(const std::byte* data, Bytes bytes) noexcept {
        const auto start = reinterpret_cast<std::uintptr_t>(data) / kCacheLine * kCacheLine;
        const auto end = reinterpret_cast<std::uintptr_t>(data) + bytes;
        __builtin_ia32_mfence();
        for (auto line = start; line < end; line += kCacheLine) {
            __builtin_ia32_clflush(reinterpret_cast<const void*>(line));
        }
        __builtin_ia32_mfence();
    }
};

/// The arena as one host sees it: two words, the group block, memory of each rank and shared
/// memory.
class SharedArena {
  public:
    SharedArena(std::byte* base, int rank)
        : base_(base), rank_(rank), view_(&policy_, base, kArenaBytes) {}

    void format() {
        format_group_block(base_ + kBlockOffset, {1, 1, kWorld});
        view_.publish(TouchPoint::kBlockFormat, base_ + kBlockOffset, group_block_bytes(kWorld));
        say(kReady);
    }
    void say(std::uint64_t value) {
        word(rank_).store(value, std::memory_order_release);
        view_.publish(TouchPoint::kClock, &word(rank_), 8);
    }
    /// Waits until the other host said at least `value`.
    bool hear(std::uint64_t value) {
        const TimePoint deadline = Clock::now() + kTimeout;
        while (Clock::now() < deadline) {
            view_.acquire(TouchPoint::kClockRead, &word(1 - rank_), 8);
            if (word(1 - rank_).load(std::memory_order_acquire) >= value) return true;
            ::usleep(100);
        }
        return false;
    }
    std::byte* memory(int owner) const {
        return base_ + kBlockOffset + round_up(group_block_bytes(kWorld), 4096) +
               kPerRank * static_cast<Bytes>(owner);
    }
    const Visibility& view() const { return view_; }

    GroupPlace place() {
        GroupPlace place;
        place.arena = base_;
        place.arena_bytes = kArenaBytes;
        place.block_offset = kBlockOffset;
        place.block_bytes = group_block_bytes(kWorld);
        place.rank = rank_;
        place.world = kWorld;
        place.group_id = 1;
        place.visibility = &policy_;
        // Staging lies in the upper half of the rank's memory, and is not used twice.
        auto used = std::make_shared<Bytes>(kPerRank / 2);
        place.allocate = [this, used](Bytes bytes) -> std::byte* {
            const Bytes start = *used;
            if (start + bytes > kPerRank) return nullptr;
            *used += round_up(bytes, 64);
            return memory(rank_) + start;
        };
        place.release = [](std::byte*) {};
        return place;
    }
    std::byte* give(int owner, Bytes bytes) {
        if (owner < 0) used_.clear();
        if (owner < 0) return nullptr;
        Bytes& start = used_[owner];
        std::byte* memory_there = memory(owner) + start;
        start += round_up(bytes, 64);
        return start <= kPerRank / 2 ? memory_there : nullptr;
    }
    std::byte* base() const { return base_; }

  private:
    static constexpr Bytes kBlockOffset = 4096;
    std::atomic<std::uint64_t>& word(int rank) {
        return *reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + 128 * rank);
    }

    std::byte* base_;
    int rank_;
    FlushPolicy policy_;
    Visibility view_;
    std::map<int, Bytes> used_;
};

unsigned char pattern(int rank, int round, Bytes at) {
    return static_cast<unsigned char>(at * 7 + static_cast<Bytes>(round) * 31 +
                                      static_cast<Bytes>(rank) * 101);
}

/// Both fill a MiB, and each reads the other's, many times. The number of wrong bytes.
std::uint64_t wrong_bytes(SharedArena& arena, int rank) {
    std::uint64_t wrong = 0;
    for (int round = 1; round <= kRounds; ++round) {
        auto* mine = reinterpret_cast<unsigned char*>(arena.memory(rank));
        for (Bytes at = 0; at < kRound; ++at) mine[at] = pattern(rank, round, at);
        arena.view().publish(TouchPoint::kElements, mine, kRound);
        arena.say(kReady + 2 * static_cast<std::uint64_t>(round));
        if (!arena.hear(kReady + 2 * static_cast<std::uint64_t>(round))) return ~std::uint64_t{0};
        auto* theirs = reinterpret_cast<unsigned char*>(arena.memory(1 - rank));
        arena.view().acquire(TouchPoint::kElementsRead, theirs, kRound);
        for (Bytes at = 0; at < kRound; ++at) wrong += theirs[at] != pattern(1 - rank, round, at);
        // Neither overwrites what the other still reads.
        arena.say(kReady + 2 * static_cast<std::uint64_t>(round) + 1);
        if (!arena.hear(kReady + 2 * static_cast<std::uint64_t>(round) + 1)) {
            return ~std::uint64_t{0};
        }
    }
    return wrong;
}

/// Every kind of collective with the other host; the number of cases that failed.
int failed_cases(SharedArena& arena, int rank) {
    const auto group = Group::attach(arena.place(), Clock::now() + kTimeout);
    if (!group.ok()) MESSAGE(describe(group.error()));
    REQUIRE(group.ok());
    RankContext context{**group,
                        rank,
                        kWorld,
                        arena.base(),
                        [&](int owner, Bytes bytes) { return arena.give(owner, bytes); },
                        arena.view(),
                        [](int) {}};  // no rank dies here
    int failures = 0;
    for (int kind = 0; kind <= static_cast<int>(Kind::kAllToAll); ++kind) {
        for (const Placement placement : {Placement::kArena, Placement::kPrivate}) {
            for (const std::uint64_t count : {1, 1000, 100003}) {
                CollectiveCase wanted;
                wanted.kind = static_cast<Kind>(kind);
                wanted.placement = placement;
                wanted.count = count;
                // After a failure the ranks are at different places: nothing more would be learnt.
                if (!run_case(context, wanted)) return failures + 1;
            }
        }
    }
    return failures;
}

void meet(SharedArena& arena, int rank) {
    CHECK(wrong_bytes(arena, rank) == 0);
    CHECK(failed_cases(arena, rank) == 0);
    // Host A's arena goes with its session: not before host B is done.
    arena.say(2 * kReady);
    CHECK(arena.hear(2 * kReady));
}

std::optional<DaxEntry> find_arena(const std::string& device, const std::string& name) {
    const TimePoint deadline = Clock::now() + kTimeout;
    while (Clock::now() < deadline) {
        const auto opened = DaxDevice::open(device, {}, true);
        if (!opened.ok()) return std::nullopt;
        if (const auto catalogue = opened->load(); catalogue.ok()) {
            for (const DaxEntry& entry : catalogue->entries) {
                if (entry.name == name) return entry;
            }
        }
        ::usleep(50'000);
    }
    return std::nullopt;
}

constexpr const char* kSocket = "/run/fabricd/attach.sock";

}  // namespace

TEST_SUITE("vm.two_hosts") {
    TEST_CASE("host a makes the arena with its daemon, and meets the other host in it") {
        const Job job(kSocket, kArenaBytes, "shared");
        REQUIRE(job.ok);
        SharedArena arena(static_cast<std::byte*>(fabricshm_arena_base(job.arena)), 0);
        arena.format();
        REQUIRE(arena.hear(kReady));
        meet(arena, 0);
    }

    TEST_CASE("host b finds the arena in the catalogue, and meets the first host in it") {
        const std::string device = PoolChoice::from_environment().where;
        const auto entry = find_arena(device, "shared");
        REQUIRE(entry);
        CHECK(entry->bytes == kArenaBytes);
        const Fd fd(::open(device.c_str(), O_RDWR | O_CLOEXEC));
        const auto mapping = Mapping::map(fd, entry->offset, entry->bytes, {true, 2 * kMiB, 0});
        REQUIRE(mapping.ok());
        SharedArena arena(mapping->data(), 1);
        REQUIRE(arena.hear(kReady));
        arena.say(kReady);
        meet(arena, 1);
    }

    TEST_CASE("a host that lost the pool grants no bytes of it") {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = kSocket;
        options.timeout_ms = 60'000;
        fabricshm_session* session = nullptr;
        REQUIRE(fabricshm_session_open(&options, &session) == FABRICSHM_OK);
        fabricshm_arena* arena = nullptr;
        CHECK(fabricshm_arena_open(session, "late", 8 * kMiB, 0, &arena) == FABRICSHM_EDENIED);
        fabricshm_session_close(session);
    }
}

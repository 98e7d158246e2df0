// Compares StepPlan with what the engines really touch. The linker hands every call of the three
// kernels that move bytes to the functions below first (--wrap, see CMakeLists.txt), which write
// down which rank read and wrote how many bytes of whose buffer after how many signals.

#include "libfabricshm/collective/steps.hpp"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "kernels/copy.hpp"
#include "kernels/reduce.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;

namespace {

constexpr int kAllRanks = -1;  // for claimed work: which rank does it is decided while it runs

// rank, signals before, whose buffer, where, write -> bytes
using Touched = std::map<std::tuple<int, std::uint64_t, int, Where, bool>, Bytes>;

struct Buffer {
    const std::byte* begin;
    Bytes bytes;
    Where where;
    int owner;
};

struct Record {
    std::vector<Buffer> buffers;
    std::vector<const std::atomic<std::uint64_t>*> clocks;
    std::vector<std::uint64_t> before;
    bool claimed = false;
    std::mutex mutex;
    Touched touched;

    void note(int rank, const void* place, Bytes bytes, bool write) {
        const auto* at = static_cast<const std::byte*>(place);
        const auto index = static_cast<std::size_t>(rank);
        // The clock belongs to this thread, so relaxed reads what it stored itself.
        const auto signals = clocks[index]->load(std::memory_order_relaxed) - before[index];
        for (const Buffer& buffer : buffers) {
            if (at < buffer.begin || at >= buffer.begin + buffer.bytes) continue;
            const std::lock_guard lock(mutex);
            touched[{claimed ? kAllRanks : rank, signals, buffer.owner, buffer.where, write}] +=
                bytes;
            return;
        }
    }
};

Record* current = nullptr;
thread_local int current_rank = 0;

void note(const void* place, Bytes bytes, bool write) {
    if (current != nullptr) current->note(current_rank, place, bytes, write);
}

}  // namespace

extern "C" {
void __real__ZN7kernels6reduceERKNS_9ReduceJobE(const kernels::ReduceJob& job);
void __real__ZN7kernels4copyEPvPKvmb(void* to, const void* from, std::size_t bytes, bool streaming);

void __wrap__ZN7kernels6reduceERKNS_9ReduceJobE(const kernels::ReduceJob& job) {
    const Bytes bytes = job.count * kernels::size_of(job.type);
    for (int i = 0; i < job.source_count; ++i) note(job.sources[i], bytes, false);
    for (int i = 0; i < job.destination_count; ++i) note(job.destinations[i], bytes, true);
    __real__ZN7kernels6reduceERKNS_9ReduceJobE(job);
}

void __wrap__ZN7kernels4copyEPvPKvmb(void* to, const void* from, std::size_t bytes,
                                     bool streaming) {
    note(from, bytes, false);
    note(to, bytes, true);
    __real__ZN7kernels4copyEPvPKvmb(to, from, bytes, streaming);
}
}

namespace {

std::vector<int> owners_of(Whose whose, int rank, int world) {
    if (whose == Whose::kOwn) return {rank};
    if (whose == Whose::kFirst) return {0};
    if (whose == Whose::kBefore) return {(rank + world - 1) % world};
    std::vector<int> owners;
    for (int owner = 0; owner < world; ++owner) {
        if (whose == Whose::kEach || owner != rank) owners.push_back(owner);
    }
    return owners;
}

/// What the plan says, in the form of the record. Lines are left out: they are stored without a
/// kernel.
Touched described(const StepPlan& plan, std::uint64_t& signals) {
    Touched touched;
    const int world = plan.call().world;
    for (int rank = 0; rank < world; ++rank) {
        signals = 0;
        for (std::uint64_t index = 0; index < plan.step_count(); ++index) {
            const Step step = plan.step(rank, index);
            for (int i = 0; i < step.touch_count; ++i) {
                const Touch& touch = step.touches[static_cast<std::size_t>(i)];
                // Claimed work is described whole by every rank: once is enough.
                if (touch.where == Where::kLine || (step.claimed && rank != 0)) continue;
                for (const int owner : owners_of(touch.whose, rank, world)) {
                    const Bytes share = share_of(touch.of, owner, world).size();
                    const Bytes bytes = touch.whose == Whose::kShares ? share : touch.bytes;
                    if (bytes == 0) continue;
                    touched[{step.claimed ? kAllRanks : rank, signals, owner, touch.where,
                             touch.write}] += bytes;
                }
            }
            signals += step.signals ? 1 : 0;
        }
    }
    return touched;
}

/// The buffers of all ranks of one call, and the record of running it.
class Run {
  public:
    Run(const AllreduceCall& call, const Tuning& tuning)
        : call_(call), tuning_(tuning), arena_(call.world, 4 * (call.bytes + 4096)) {
        const GroupLayout layout = GroupLayout::of(call.world);
        own_.resize(static_cast<std::size_t>(call.world));
        const auto* words = reinterpret_cast<const RankWords*>(arena_.block() + layout.ranks);
        for (int rank = 0; rank < call.world; ++rank) {
            own_[static_cast<std::size_t>(rank)].resize(2 * call.bytes + 1);
            record_.buffers.push_back({input(rank), call.bytes, Where::kInput, rank});
            if (!call.shared_result || rank == 0) {
                record_.buffers.push_back({output(rank), call.bytes, Where::kOutput, rank});
            }
            record_.buffers.push_back(
                {arena_.block() + layout.slots + layout.slot_bytes * 2 * static_cast<Bytes>(rank),
                 2 * layout.slot_bytes, Where::kSlot, rank});
            record_.clocks.push_back(&words[rank].clock);
        }
        record_.before.resize(static_cast<std::size_t>(call.world));
        signals_.resize(static_cast<std::size_t>(call.world));
    }

    /// Runs it once on threads; false when a rank failed.
    bool run(bool claimed) {
        record_.claimed = claimed;
        current = &record_;
        std::vector<std::thread> ranks;
        std::atomic<int> failures{0};
        for (int rank = 0; rank < call_.world; ++rank) {
            ranks.emplace_back([this, rank, &failures] { failures += run_rank(rank) ? 0 : 1; });
        }
        for (std::thread& rank : ranks) rank.join();
        current = nullptr;
        return failures == 0;
    }

    const Touched& touched() const { return record_.touched; }
    const std::vector<std::uint64_t>& signals() const { return signals_; }

  private:
    std::byte* input(int rank) {
        if (!call_.in_arena) return own_[static_cast<std::size_t>(rank)].data();
        const Bytes each = 4 * (call_.bytes + 4096);
        return arena_.block() + group_block_bytes(call_.world) +
               round_up(each, 4096) * static_cast<Bytes>(rank);
    }
    std::byte* output(int rank) {
        if (call_.shared_result) rank = 0;
        return input(rank) + (call_.in_arena ? round_up(call_.bytes, 64) : call_.bytes);
    }

    bool run_rank(int rank) {
        current_rank = rank;
        const TimePoint deadline = fabricshm::Clock::now() + std::chrono::seconds(60);
        GroupPlace place = arena_.place(rank);
        place.tuning = &tuning_;
        const auto group = Group::attach(place, deadline);
        if (!group.ok()) return false;
        const auto at = static_cast<std::size_t>(rank);
        record_.before[at] = record_.clocks[at]->load(std::memory_order_relaxed);
        Call call;
        call.kind = Kind::kAllreduce;
        call.dtype = kernels::DType::kF32;
        call.count = call_.bytes / 4;
        call.algorithm = call_.algorithm;
        call.trigger = call_.trigger;
        call.flags = call_.shared_result ? kSharedOutput : 0;
        call.input = input(rank);
        call.output = output(rank);
        call.deadline = deadline;
        const bool done = (*group)->run(call).ok();
        signals_[at] = record_.clocks[at]->load(std::memory_order_relaxed) - record_.before[at];
        return done;
    }

    AllreduceCall call_;
    Tuning tuning_;
    test_support::TestArena arena_;
    std::vector<std::vector<std::byte>> own_;
    std::vector<std::uint64_t> signals_;
    Record record_;
};

void compare(const AllreduceCall& call, const Tuning& tuning) {
    const StepPlan plan(call, tuning, GroupLayout::of(call.world).slot_bytes);
    CAPTURE(call.world);
    CAPTURE(call.bytes);
    CAPTURE(name_of(call.algorithm));
    CAPTURE(call.in_arena);
    Run run(call, tuning);
    REQUIRE(run.run(plan.claims()));
    std::uint64_t signals = 0;
    Touched expected = described(plan, signals);
    if (plan.route() == Route::kTiny) {
        // A post in the slot of its flag is stored without a kernel.
        for (int rank = 0; rank < call.world && call.bytes <= kTinyBytes; ++rank) {
            expected.erase({rank, 0, rank, Where::kInput, false});
        }
    }
    // Along the tree values go by private memory; only the signals are seen here.
    if (plan.route() == Route::kTree) expected.clear();
    CHECK(run.touched() == expected);
    for (const std::uint64_t count : run.signals()) CHECK(count == signals);
}

Tuning small_tuning() {
    Tuning tuning;
    tuning.piece_bytes = 16 * kKiB;
    tuning.claim_from = 200 * kKiB;
    tuning.chunk_bytes = 8 * kKiB;
    tuning.spins = 1;
    tuning.yields = 1000;
    return tuning;
}

constexpr Algorithm kAll[] = {Algorithm::kAuto, Algorithm::kFlat,   Algorithm::kDirect,
                              Algorithm::kRing, Algorithm::kStaged, Algorithm::kHost};

}  // namespace

TEST_SUITE("collective.steps") {
    TEST_CASE("the engines touch the bytes that the plan describes, between the same signals") {
        for (const int world : {2, 3, 4}) {
            for (const Bytes bytes : {Bytes{8}, Bytes{1000}, Bytes{40'000}}) {
                for (const Algorithm algorithm : kAll) {
                    for (const bool in_arena : {true, false}) {
                        AllreduceCall call;
                        call.world = world;
                        call.bytes = bytes;
                        call.algorithm = algorithm;
                        call.in_arena = in_arena;
                        compare(call, small_tuning());
                    }
                }
            }
        }
    }

    TEST_CASE("the same with ranks enough for a tree") {
        Tuning tuning = small_tuning();
        tuning.tree_world = 5;
        for (const Bytes bytes : {Bytes{8}, Bytes{400}, Bytes{1000}, Bytes{40'000}}) {
            for (const bool in_arena : {true, false}) {
                AllreduceCall call;
                call.world = 9;
                call.bytes = bytes;
                call.in_arena = in_arena;
                compare(call, tuning);
            }
        }
    }

    TEST_CASE("the same with claims, a shared result, and the command of rank 0") {
        AllreduceCall call;
        call.world = 3;
        call.bytes = 300'000;
        compare(call, small_tuning());
        call.bytes = 100'000;
        call.shared_result = true;
        compare(call, small_tuning());
        call.shared_result = false;
        call.trigger = Trigger::kSync;
        for (const Algorithm algorithm : kAll) {
            call.algorithm = algorithm;
            compare(call, small_tuning());
        }
    }

    TEST_CASE("a ring of thousands reads twice the vector but one chunk, on every rank") {
        AllreduceCall call;
        call.world = 2048;
        call.bytes = 2048 * 64;
        call.algorithm = Algorithm::kRing;
        const StepPlan plan(call, {}, 64 * kKiB);
        Bytes from_neighbour = 0;
        for (std::uint64_t index = 0; index < plan.step_count(); ++index) {
            const Step step = plan.step(7, index);
            for (int i = 0; i < step.touch_count; ++i) {
                const Touch& touch = step.touches[static_cast<std::size_t>(i)];
                if (touch.whose == Whose::kBefore) from_neighbour += touch.bytes;
            }
        }
        CHECK(from_neighbour == 2 * (call.bytes - 64));
    }
}

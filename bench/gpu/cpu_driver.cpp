// How fast are the collectives of the CPU with many ranks, on a machine that has no daemon? The
// ranks of one process set for bench/harness: forked from one process, over memory that they share,
// with a group block in it as the daemon would have made it.

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/driver.hpp"
#include "libfabricshm/base/version.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/shm/group_block.hpp"

using namespace fabricshm;

namespace {

constexpr int kMaxWorld = 64;
constexpr auto kTimeout = std::chrono::seconds(60);
constexpr Bytes kHugePage = Bytes{2} << 20;
// Buffers at a power of two from each other would meet in the same cache sets and memory banks.
constexpr Bytes kSkew = 11 * 4096 + 9 * 64;

void need(const Result<void>& result, const char* what) {
    if (!result.ok()) bench::die(std::string(what) + ": " + describe(result.error()));
}

/// What all ranks have at one address, because they are forked from one process: the group block,
/// and behind it a stretch for each rank.
struct Arena {
    Arena(int world, Bytes stretch_bytes)
        : block_bytes(round_up(group_block_bytes(world), kHugePage)),
          stretch(stretch_bytes),
          bytes(block_bytes + stretch * static_cast<Bytes>(world)) {
        // Without reserving: it is as large as the largest case could want.
        void* made = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) bench::die("cannot map the arena");
        // As the pool does where the machine has them for shared memory.
        ::madvise(made, bytes, MADV_HUGEPAGE);
        base = static_cast<std::byte*>(made);
        format_group_block(base, {1, 1, world});
    }

    std::byte* of(int rank) const {
        return base + block_bytes + stretch * static_cast<Bytes>(rank);
    }

    std::byte* base = nullptr;
    Bytes block_bytes;
    Bytes stretch;
    Bytes bytes;
};

class GroupContender final : public bench::Contender {
  public:
    GroupContender(const Arena& arena, int rank, int world) : arena_(arena) {
        GroupPlace place;
        place.arena = arena.base;
        place.arena_bytes = arena.bytes;
        place.block_bytes = group_block_bytes(world);
        place.rank = rank;
        place.world = world;
        place.group_id = 1;
        auto made = Group::attach(std::move(place), Clock::now() + std::chrono::seconds(60));
        if (!made.ok()) bench::die("attach: " + describe(made.error()));
        group_ = std::move(*made);
    }

    int rank() const override { return group_->rank(); }
    int world() const override { return group_->world(); }
    std::string version() const override { return "fabricshm " FABRIC_VERSION; }

    std::string refuses(const bench::Case& wanted) const override {
        if (wanted.collective != bench::Collective::kAllreduce) return "only allreduce";
        if (wanted.place == bench::Place::kShared) return "no shared result";
        // The input and, out of place, the output of one pair.
        const Bytes most = (2 * wanted.bytes + 4 * kSkew) * static_cast<Bytes>(wanted.pairs);
        return most > arena_.stretch ? "larger than --area-bytes" : "";
    }

    // From the stretch's start on; buffers of a case are released together.
    void* allocate(bench::Memory memory, std::size_t bytes) override {
        if (memory == bench::Memory::kHeap) return Contender::allocate(memory, bytes);
        void* const block = arena_.of(rank()) + taken_;
        taken_ += round_up(bytes, 4096) + kSkew;
        return block;
    }
    void release(bench::Memory memory, void* block, std::size_t bytes) override {
        if (memory == bench::Memory::kHeap) return Contender::release(memory, block, bytes);
        taken_ = 0;
    }

    void prepare(const bench::Case&, const std::vector<bench::Buffers>& pairs) override {
        for (const bench::Buffers& b : pairs) {
            Call call;
            call.kind = Kind::kAllreduce;
            call.dtype = kernels::DType::kF32;
            call.op = kernels::ReduceOp::kSum;
            call.input = reinterpret_cast<const std::byte*>(b.input);
            call.output = reinterpret_cast<std::byte*>(b.output);
            call.count = b.output_count;
            calls_.push_back(call);
        }
    }
    void forget() override { calls_.clear(); }

    // As the C ABI: a call that is like the last one need not be checked again.
    void run(std::size_t pair) override {
        const Call& call = calls_[pair];
        if (last_ != 0 && last_ == group_->kept())
            return need(group_->repeat(call.input, call.output, kTimeout), "allreduce");
        run(call, "allreduce");
        last_ = group_->kept();
    }
    void barrier() override {
        run({}, "barrier");
        last_ = 0;
    }

  private:
    void run(const Call& call, const char* what) {
        Call bounded = call;
        bounded.deadline = Clock::now() + kTimeout;
        need(group_->run(bounded), what);
    }

    const Arena& arena_;
    std::unique_ptr<Group> group_;
    Bytes taken_ = 0;
    std::uint64_t last_ = 0;  // what kept() says of the last call
    std::vector<Call> calls_;
};

}  // namespace

int main(int argc, char** argv) {
    using bench::option;
    const int world = std::stoi(option(argc, argv, "--world"));
    if (world < 2 || world > kMaxWorld) bench::die("--world is 2 to 64");
    const Arena arena(world, std::stoull(option(argc, argv, "--area-bytes")));
    return bench::run_ranks(world, [&](int rank) {
        GroupContender contender(arena, rank, world);
        return bench::serve(contender, option(argc, argv, "--control"),
                            option(argc, argv, "--name"));
    });
}

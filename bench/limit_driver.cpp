// What would the collectives cost if no rank ever had to wait? The ranks move the bytes an
// algorithm has to move, between each other's buffers, without flags: the algorithm's limit on this
// memory.
//
//   push  each rank reduces its part from all inputs and stores it into every output
//   pull  each rank reduces its part into its own output, then copies the others' parts from theirs
//
// and behind it, in any order, how: which way of these is the fastest depends on the size and the
// machine, and the limit is the best of them.
//   -nt  streaming stores                  -string  rep movsb
//   -ahead  sources prefetched             -wide  eight registers at a time instead of four
//   -turns  chunks in turn instead of one part per rank
//   -split  each piece into the own output first, then copied from the cache to the others'
//
// With a shared result push and pull are one: read everything once, store one part. A message is
// copied once, half of it by either rank. An optimiser step reads the gradients of all, and reads
// and writes parameters and states once (push, push-ahead). The barrier is a ping-pong of one cache
// line between ranks 0 and 1. Results are not checked: parts may be read before they are there.

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "bench/driver.hpp"
#include "bench/memory_moves.hpp"
#include "bench/step_pass.hpp"

namespace {

constexpr int kMaxWorld = bench::kMaxRanks;
constexpr std::size_t kPrefetchBytes = 512;
constexpr std::size_t kPiece = 4096;  // elements, of -split: half of a first-level cache
constexpr std::size_t kChunk = (std::size_t{256} << 10) / sizeof(float);  // elements, of -turns

// Buffers at a power of two from each other would meet in the same cache sets and memory banks.
constexpr std::size_t kSkew = 11 * 4096 + 9 * 64;

// Two cache lines: adjacent ones are fetched together, and ranks would disturb each other.
struct alignas(128) Word {
    std::atomic<std::uint64_t> value{0};
};

struct Barrier {
    Word arrived;
    Word ping[2];
};

/// What all ranks see at the same address, because they are forked from one process.
struct Shared {
    Barrier* barrier;
    // Mapped before the fork, hence at one address.
    char* area;          // `world + 1` stretches of `stride` bytes; the last is the shared result
    std::size_t stride;  // bytes
};

class LimitContender final : public bench::Contender {
  public:
    LimitContender(const Shared& shared, int rank, int world)
        : shared_(shared), rank_(rank), world_(world) {}

    int rank() const override { return rank_; }
    int world() const override { return world_; }
    std::string version() const override {
        return std::string("limit ") + bench::memory_moves().isa;
    }

    // Inputs and outputs of all pairs, at most one vector each.
    std::string refuses(const bench::Case& wanted) const override {
        if (wanted.collective == bench::Collective::kSendRecv &&
            wanted.algorithm.find("pull") != std::string::npos)
            return "a message is moved by both ranks";
        if (wanted.collective == bench::Collective::kScan) return "each output is another sum";
        if (wanted.collective == bench::Collective::kStep) return refuses_step(wanted);
        if (wanted.algorithm.find("-split") != std::string::npos &&
            (wanted.collective != bench::Collective::kAllreduce ||
             wanted.place == bench::Place::kShared))
            return "a split is of several outputs";
        if (wanted.algorithm.find("-turns") != std::string::npos &&
            (wanted.collective != bench::Collective::kAllreduce ||
             wanted.bytes <= kChunk * sizeof(float)))
            return "chunks in turn are for large allreduces";
        if (2 * wanted.bytes * static_cast<std::size_t>(wanted.pairs) > shared_.stride)
            return "larger than --area-bytes";
        return "";
    }

    std::string refuses_step(const bench::Case& wanted) const {
        if (wanted.place != bench::Place::kShared) return "parameters are shared";
        if (world_ > bench::kFixed) return "a step is of 4 ranks at most";
        const std::string& how = wanted.algorithm;
        if (how != "push" && how != "push-ahead" && how != "copy") return "no such step";
        return 3 * (wanted.bytes + kSkew + 4096) > shared_.stride ? "larger than --area-bytes" : "";
    }

    bool in_place_result_at_start() const override { return false; }

    // From the stretch's start on and in the same order on all ranks, which is what of_peer()
    // counts on.
    void* allocate(bench::Memory /*memory*/, std::size_t bytes) override {
        char* block = stretch(rank_) + taken_;
        populate(block, bytes);
        taken_ += ((bytes + 4095) & ~std::size_t{4095}) + kSkew;
        return block;
    }

    // All at once: buffers of a case are released together.
    void release(bench::Memory /*memory*/, void* /*block*/, std::size_t /*bytes*/) override {
        if (taken_ > 0) discard(rank_);
        taken_ = 0;
    }

    void* allocate_shared(std::size_t /*bytes*/) override { return stretch(world_); }
    void release_shared(void* /*block*/, std::size_t /*bytes*/) override { discard(world_); }

    // The gradients in the ranks' own stretches, parameters and states one after the other in the
    // last one. Nothing is checked, so that no caller needs to know where.
    std::vector<bench::StepTensor> prepare_step(const bench::Case& wanted) override {
        case_ = wanted;
        prefetch_ = wanted.algorithm == "push-ahead" ? kPrefetchBytes : 0;
        store_ = bench::Store::kStreaming;  // of the copy
        gradient_ = static_cast<float*>(allocate(wanted.memory, wanted.bytes));
        for (std::size_t array = 0; array < 3; ++array) {
            // Whole pages, so that a page is of one array.
            const std::size_t pages = ((wanted.bytes + kSkew) & ~std::size_t{4095}) + 4096;
            char* block = stretch(world_) + array * pages;
            populate(block, wanted.bytes);
            moved_[array] = reinterpret_cast<float*>(block);
        }
        return {};
    }

    void forget() override {
        if (gradient_ == nullptr) return;
        gradient_ = nullptr;
        release(case_.memory, nullptr, 0);
        release_shared(nullptr, 0);
    }

    void prepare(const bench::Case& wanted, const std::vector<bench::Buffers>& pairs) override {
        case_ = wanted;
        pairs_ = pairs;
        const auto has = [&](const char* word) {
            return wanted.algorithm.find(word) != std::string::npos;
        };
        pulling_ = has("pull");
        store_ = has("-nt")       ? bench::Store::kStreaming
                 : has("-string") ? bench::Store::kString
                                  : bench::Store::kCached;
        prefetch_ = has("-ahead") ? kPrefetchBytes : 0;
        in_turns_ = has("-turns");
        wide_ = has("-wide");
        split_ = has("-split");
    }

    void run(std::size_t pair) override {
        if (case_.collective == bench::Collective::kStep) return step();
        const bench::Buffers& b = pairs_[pair];
        switch (case_.collective) {
            case bench::Collective::kAllreduce:
                return allreduce(b);
            case bench::Collective::kAllGather:
                return all_gather(b);
            case bench::Collective::kReduceScatter:
                return reduce_part(b.input, {b.output});
            case bench::Collective::kBroadcast:
                return broadcast(b);
            case bench::Collective::kBarrier:
                return ping_pong();
            case bench::Collective::kSendRecv:
                return ping_pong_messages(b);
            case bench::Collective::kScan:
            case bench::Collective::kStep:
                return;  // refused, and above
        }
    }

    void barrier() override {
        // Monotonic: the word is never reset, so no rank can be lapped.
        barriers_ += static_cast<std::uint64_t>(world_);
        // acq_rel: what a rank wrote before the barrier is seen by all after it.
        shared_.barrier->arrived.value.fetch_add(1, std::memory_order_acq_rel);
        while (shared_.barrier->arrived.value.load(std::memory_order_acquire) < barriers_)
            sched_yield();
    }

  private:
    using Pointers = std::vector<float*>;

    char* stretch(int index) const {
        return shared_.area + static_cast<std::size_t>(index) * shared_.stride;
    }

    void step() const {
        const std::size_t whole = case_.bytes / sizeof(float);
        const std::size_t count = rank_ == world_ - 1 ? whole - start(rank_) : part();
        const float* sources[kMaxWorld];
        for (int i = 0; i < world_; ++i) sources[i] = of_peer(gradient_, i) + start(rank_);
        float* values[3];
        for (int i = 0; i < 3; ++i) values[i] = moved_[i] + start(rank_);
        if (case_.algorithm == "copy") return move(sources, 1, values, 1, count);
        bench::step_pass(sources, world_, values, count, prefetch_);
    }

    /// The pages all at once, as the pool makes those of an arena: pages that lie together in
    /// memory cost fewer entries of the address translation. Where the kernel cannot, the first
    /// touch makes them.
    static void populate(char* block, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
        const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(block) & ~std::uintptr_t{4095};
        const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(block) + bytes;
        madvise(reinterpret_cast<void*>(at), end - at, MADV_POPULATE_WRITE);
#endif
    }

    /// Gives back the memory of a stretch; its ends, shared with the neighbours, stay.
    void discard(int index) const {
        const auto first = reinterpret_cast<std::uintptr_t>(stretch(index)) + 4095;
        const auto last = reinterpret_cast<std::uintptr_t>(stretch(index + 1));
        char* page = reinterpret_cast<char*>(first & ~std::uintptr_t{4095});
        madvise(page, (last & ~std::uintptr_t{4095}) - reinterpret_cast<std::uintptr_t>(page),
                MADV_REMOVE);
    }

    /// The same place in the stretch of `peer`: every rank lays its buffers out alike.
    // No message has to say where a peer's buffer is, so that nothing of the kind is in the limit.
    float* of_peer(float* mine, int peer) const {
        if (case_.place == bench::Place::kShared &&
            reinterpret_cast<char*>(mine) >= stretch(world_))
            return mine;
        const auto distance = static_cast<std::ptrdiff_t>(shared_.stride) * (peer - rank_);
        return reinterpret_cast<float*>(reinterpret_cast<char*>(mine) + distance);
    }

    std::size_t part() const {
        return case_.bytes / sizeof(float) / static_cast<std::size_t>(world_);
    }
    std::size_t start(int rank) const {
        return part() * static_cast<std::size_t>(rank);
    }

    // Everything is made of this one loop: reducing, copying and handing out differ by their
    // counts.
    void move(const float* const* sources, int source_count, float* const* destinations,
              int destination_count, std::size_t count) const {
        bench::memory_moves().move({sources, source_count, destinations, destination_count, count,
                                    store_, wide_, prefetch_});
    }

    void copy(const float* from, float* to, std::size_t count) const {
        move(&from, 1, &to, 1, count);
    }

    /// My part of everybody's `input`, to `destinations`.
    void reduce_part(float* input, std::initializer_list<float*> destinations) const {
        reduce_part(input, destinations.begin(), static_cast<int>(destinations.size()));
    }

    // Starting with the own one spreads the ranks over the sources.
    void reduce_part(float* input, float* const* destinations, int destination_count) const {
        reduce_at(input, start(rank_), destinations, destination_count, part());
    }

    void reduce_at(float* input, std::size_t at, float* const* destinations, int destination_count,
                   std::size_t count) const {
        const float* sources[kMaxWorld];
        for (int i = 0; i < world_; ++i) {
            const int peer = (rank_ + i) % world_;  // own first, then in ring order
            sources[i] = of_peer(input, peer) + at;
        }
        move(sources, world_, destinations, destination_count, count);
    }

    // Each rank has every world-th chunk: all of them work near each other in memory.
    void allreduce_in_turns(const bench::Buffers& b, bool is_shared) const {
        const std::size_t mine = static_cast<std::size_t>(rank_) * kChunk;
        const std::size_t step = static_cast<std::size_t>(world_) * kChunk;
        for (std::size_t at = mine; at < b.output_count; at += step) {
            float* destinations[kMaxWorld];
            const int count = is_shared ? 1 : world_;
            for (int i = 0; i < count; ++i)
                destinations[i] = of_peer(b.output, (rank_ + i) % world_) + at;
            reduce_at(b.input, at, destinations, count, std::min(kChunk, b.output_count - at));
        }
    }

    void allreduce_split(const bench::Buffers& b) const {
        const std::size_t end = start(rank_) + part();
        for (std::size_t at = start(rank_); at < end; at += kPiece) {
            const std::size_t count = std::min(kPiece, end - at);
            float* own = b.output + at;
            const float* sources[kMaxWorld];
            for (int i = 0; i < world_; ++i)
                sources[i] = of_peer(b.input, (rank_ + i) % world_) + at;
            bench::memory_moves().move(
                {sources, world_, &own, 1, count, bench::Store::kCached, wide_, prefetch_});
            for (int i = 1; i < world_; ++i)
                copy(own, of_peer(b.output, (rank_ + i) % world_) + at, count);
        }
    }

    void allreduce(const bench::Buffers& b) const {
        const bool is_shared = case_.place == bench::Place::kShared;
        if (in_turns_) return allreduce_in_turns(b, is_shared);
        if (is_shared || pulling_) {
            reduce_part(b.input, {b.output + start(rank_)});
            for (int i = 1; i < world_ && !is_shared; ++i) {
                const int peer = (rank_ + i) % world_;
                copy(of_peer(b.output, peer) + start(peer), b.output + start(peer), part());
            }
            return;
        }
        if (split_) return allreduce_split(b);
        float* destinations[kMaxWorld];
        for (int i = 0; i < world_; ++i)
            destinations[i] = of_peer(b.output, (rank_ + i) % world_) + start(rank_);
        reduce_part(b.input, destinations, world_);
    }

    void all_gather(const bench::Buffers& b) const {
        const bool in_place = case_.place == bench::Place::kIn;
        if (!pulling_) {
            float* destinations[kMaxWorld];
            int count = 0;
            for (int i = in_place ? 1 : 0; i < world_; ++i)
                destinations[count++] = of_peer(b.output, (rank_ + i) % world_) + start(rank_);
            const float* source = b.input;
            return move(&source, 1, destinations, count, part());
        }
        for (int i = in_place ? 1 : 0; i < world_; ++i) {
            const int peer = (rank_ + i) % world_;
            float* source =
                in_place ? of_peer(b.output, peer) + start(peer) : of_peer(b.input, peer);
            copy(source, b.output + start(peer), part());
        }
    }

    // Pushing, each rank hands out the part that is its own, so that all memories work; pulling,
    // each reads the root.
    void broadcast(const bench::Buffers& b) const {
        float* root = of_peer(b.output, 0);
        if (pulling_) {
            if (rank_ != 0) copy(root, b.output, b.output_count);
            return;
        }
        float* destinations[kMaxWorld];
        for (int peer = 1; peer < world_; ++peer)
            destinations[peer - 1] = of_peer(b.output, peer) + start(rank_);
        const float* source = root + start(rank_);
        move(&source, 1, destinations, world_ - 1, part());
    }

    // There and back, each message by halves: by the rank that has it and by the one that wants it.
    void ping_pong_messages(const bench::Buffers& b) const {
        const int first = rank_ / 2 * 2;
        const std::size_t half = b.output_count / 2;
        const std::size_t begin = rank_ == first ? 0 : half;
        const std::size_t end = rank_ == first ? half : b.output_count;
        for (const int sender : {first, first + 1}) {
            const int receiver = 2 * first + 1 - sender;
            copy(of_peer(b.input, sender) + begin, of_peer(b.output, receiver) + begin,
                 end - begin);
        }
    }

    void ping_pong() {
        if (rank_ > 1) return;
        ++pings_;
        auto& mine = shared_.barrier->ping[rank_].value;
        auto& other = shared_.barrier->ping[1 - rank_].value;
        // Rank 0 serves, rank 1 returns: one round trip of a cache line each way.
        if (rank_ == 0) mine.store(pings_, std::memory_order_release);
        // Spinning at first: a round trip is shorter than a system call.
        for (int spins = 0; other.load(std::memory_order_acquire) < pings_; ++spins)
            if (spins > 10'000) sched_yield();
        if (rank_ == 1) mine.store(pings_, std::memory_order_release);
    }

    Shared shared_;
    int rank_;
    int world_;
    std::size_t taken_ = 0;
    std::uint64_t barriers_ = 0;
    std::uint64_t pings_ = 0;
    bool pulling_ = false;
    bool in_turns_ = false;
    bool wide_ = false;
    bool split_ = false;
    bench::Store store_ = bench::Store::kCached;
    std::size_t prefetch_ = 0;
    float* gradient_ = nullptr;  // of a step; of all its ranks at the same place in their stretches
    float* moved_[3] = {};
    bench::Case case_;
    std::vector<bench::Buffers> pairs_;
};

// Without reserving: an area is as large as the largest case could want, and most cases are small.
void* map_shared(std::size_t bytes) {
    void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) bench::die("cannot map the area of the limits");
    // As the pool does where the machine has them for shared memory.
    madvise(block, bytes, MADV_HUGEPAGE);
    return block;
}

}  // namespace

int main(int argc, char** argv) {
    using bench::option;
    const int world = std::stoi(option(argc, argv, "--world"));
    if (world < 2 || world > kMaxWorld) bench::die("--world is 2 to 16");
    Shared shared{};
    shared.stride = std::stoull(option(argc, argv, "--area-bytes", "536870912")) + 16 * kSkew;
    shared.barrier = new (map_shared(sizeof(Barrier))) Barrier;
    shared.area =
        static_cast<char*>(map_shared(shared.stride * static_cast<std::size_t>(world + 1)));
    return bench::run_ranks(world, [&](int rank) {
        // A limit does not wander: with two ranks on one core it would be none.
        bench::pin_to_core(rank);
        LimitContender contender(shared, rank, world);
        return bench::serve(contender, option(argc, argv, "--control"),
                            option(argc, argv, "--name"));
    });
}

// A process of the job stores random bytes all over the arena while another one uses it: contents
// may be corrupt, but no signal and no call that does not end, for it and for the daemon.

#include <doctest/doctest.h>
#include <fabricshm/shard.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"

using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;

namespace {

// Small, so that the few structures in it are hit often.
constexpr std::uint64_t kArenaBytes = 2 << 20;
constexpr int kSteps = 3000;
constexpr std::int64_t kWaitMs = 1;
constexpr std::int64_t kShape[] = {16};

class SharedFlag {
  public:
    SharedFlag()
        : flag_(new (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                            0)) std::atomic<bool>(false)) {}
    ~SharedFlag() { ::munmap(flag_, 4096); }
    SharedFlag(const SharedFlag&) = delete;
    SharedFlag& operator=(const SharedFlag&) = delete;
    std::atomic<bool>& operator*() const { return *flag_; }

  private:
    std::atomic<bool>* flag_;
};

// Mostly whole words, which do more harm; a few of them plausible.
std::uint64_t word(std::mt19937_64& random) {
    switch (random() % 4) {
        case 0:
            return 0;
        case 1:
            return random() % 64;
        case 2:
            return ~std::uint64_t{0} << (random() % 64);
        default:
            return random();
    }
}

int scribble(const std::string& socket, Gate& there, const std::atomic<bool>& over, unsigned seed) {
    const Job job(socket, kArenaBytes);
    if (!job.ok) return failed(1);
    auto* base = static_cast<std::byte*>(fabricshm_arena_base(job.arena));
    std::mt19937_64 random(seed);
    there.open();
    for (int turn = 0; !over.load(); ++turn) {
        for (int i = 0; i < 64; ++i) {
            const std::uint64_t value = word(random);
            // Every other one at the start of a page: there are the headers.
            std::uint64_t at = random() % (kArenaBytes - 8);
            if (i % 2 == 0) at = at / 4096 * 4096 + random() % 16 * 8;
            std::memcpy(base + at, &value, sizeof value);
        }
        // So that operations that take a few polls are hit at all of them.
        if (turn % 16 == 0) ::usleep(0);
    }
    return 0;
}

/// Uses everything in the arena, in random order. Each call may fail; none may not return.
class Victim {
  public:
    Victim(const Job& job, unsigned seed) : job_(job), random_(seed) {}
    ~Victim() {
        for (fabricshm_shard* shard : shards_) fabricshm_shard_close(shard);
    }
    Victim(const Victim&) = delete;
    Victim& operator=(const Victim&) = delete;

    void step() {
        switch (random_() % 5) {
            case 0:
                return use_blocks();
            case 1:
                return use_tensors();
            case 2:
                return use_shards();
            case 3:
                return use_regions();
            default:
                for (int i = 0; i < 4; ++i) use_blocks();
        }
    }

    bool free_all() {
        for (void* block : blocks_) fabricshm_free(job_.arena, block);
        blocks_.clear();
        return true;
    }

  private:
    void use_blocks() {
        if (blocks_.size() < 40) {
            void* block = fabricshm_alloc(job_.arena, random_() % 9000);
            if (block != nullptr) blocks_.push_back(block);
        }
        if (blocks_.empty() || random_() % 2 == 0) return;
        const std::size_t at = random_() % blocks_.size();
        fabricshm_free(job_.arena, blocks_[at]);
        blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(at));
    }

    void use_regions() {
        fabricshm_region region{};
        if (fabricshm_region_create(job_.arena, 1 + random_() % 20000, &region) != 0) return;
        fabricshm_region again{};
        fabricshm_region_open(job_.arena, region.id, &again);
        fabricshm_region_free(job_.arena, region.id);
    }

    void use_tensors() {
        if (tensors_.size() < 8) {
            const std::string name = "t" + std::to_string(++made_);
            fabricshm_tensor tensor{};
            if (fabricshm_tensor_create(job_.arena, name.c_str(), FABRICSHM_F32, 1, kShape,
                                        &tensor) == 0) {
                tensors_.push_back(tensor);
            }
        }
        if (tensors_.empty()) return;
        const std::size_t at = random_() % tensors_.size();
        const fabricshm_tensor& tensor = tensors_[at];
        std::uint64_t version = 0;
        fabricshm_tensor_publish(job_.arena, &tensor, &version);
        fabricshm_tensor_wait(job_.arena, &tensor, version + random_() % 2, kWaitMs, &version);
        if (random_() % 2 == 0) return;
        fabricshm_tensor_free(job_.arena, &tensor);
        tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(at));
    }

    void use_shards() {
        if (shards_.size() < 4) {
            const std::string name = "s" + std::to_string(++made_);
            fabricshm_shard* shard = nullptr;
            if (fabricshm_shard_create(job_.arena, name.c_str(), FABRICSHM_F32, 1, kShape,
                                       &shard) == 0) {
                shards_.push_back(shard);
            }
        }
        if (shards_.empty()) return;
        const std::size_t at = random_() % shards_.size();
        fabricshm_shard* shard = shards_[at];
        fabricshm_shard_view view{};
        if (fabricshm_shard_write(shard, &view) == 0) {
            std::memset(view.data, 1, view.bytes);
            fabricshm_shard_publish(shard, nullptr);
        }
        if (fabricshm_shard_read(shard, random_() % 2, kWaitMs, &view) == 0) {
            fabricshm_shard_release(shard, &view);
        }
        if (random_() % 4 == 0) fabricshm_shard_move(shard, "here", 0);
        if (random_() % 4 != 0) return;
        fabricshm_shard_free(shard);
        fabricshm_shard_close(shard);
        shards_.erase(shards_.begin() + static_cast<std::ptrdiff_t>(at));
    }

    const Job& job_;
    std::mt19937_64 random_;
    std::vector<void*> blocks_;
    std::vector<fabricshm_tensor> tensors_;
    std::vector<fabricshm_shard*> shards_;
    std::uint64_t made_ = 0;
};

int suffer(const std::string& socket, Gate& there, std::atomic<bool>& over, unsigned seed) {
    const Job job(socket, kArenaBytes);
    if (!job.ok || !there.wait()) return failed(2);
    {
        Victim victim(job, seed);
        for (int i = 0; i < kSteps; ++i) victim.step();
        over.store(true);
        if (!victim.free_all()) return failed(3);
    }
    // What lies in private memory is as it was: a heap that is empty gives all of a piece.
    for (int i = 0; i < 20; ++i) {
        void* block = fabricshm_alloc(job.arena, 20000);
        if (block == nullptr) return failed(4);
        std::memset(block, i, 20000);
        fabricshm_free(job.arena, block);
    }
    return 0;
}

}  // namespace

TEST_SUITE("client.scribble") {
    TEST_CASE("a peer that stores all over the arena ends no other process and stops none") {
        const Daemon daemon;
        for (unsigned seed = 1; seed <= 3; ++seed) {
            CAPTURE(seed);
            Gate there;
            const SharedFlag over;
            Child writer([&] { return scribble(daemon.socket(), there, *over, seed); });
            Child victim([&] { return suffer(daemon.socket(), there, *over, seed); });
            CHECK(victim.wait() == 0);
            (*over).store(true);
            CHECK(writer.wait() == 0);
        }
        // The daemon, too, is as it was.
        Child other([&] {
            const Job job(daemon.socket(), kArenaBytes, "other");
            fabricshm_tensor tensor{};
            const bool good = job.ok && fabricshm_tensor_create(job.arena, "t", FABRICSHM_F32, 1,
                                                                kShape, &tensor) == 0;
            return good ? 0 : 1;
        });
        CHECK(other.wait() == 0);
    }
}

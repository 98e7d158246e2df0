#include "libfabricshm/client/arena_heap.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

using namespace fabricshm;

namespace {

// Regions from malloc, up to a limit.
class FakeRegions final : public RegionSource {
  public:
    explicit FakeRegions(Bytes limit) : left_(limit) {}
    ~FakeRegions() override {
        for (auto& [id, region] : taken_) std::free(region.base);
    }

    Result<HeapRegion> take(Bytes bytes) override {
        const std::lock_guard lock(mutex_);
        ++asked;
        if (bytes > left_) return Error{Errc::kNoMemory, 0, "take"};
        left_ -= bytes;
        HeapRegion region{++last_id_,
                          static_cast<std::byte*>(std::aligned_alloc(4096, round_up(bytes, 4096))),
                          bytes};
        taken_[region.id] = region;
        return region;
    }

    void give_back(std::uint64_t id) noexcept override {
        const std::lock_guard lock(mutex_);
        left_ += taken_.at(id).bytes;
        std::free(taken_.at(id).base);
        taken_.erase(id);
    }

    std::size_t live() const { return taken_.size(); }
    Bytes left() const { return left_; }
    int asked = 0;

  private:
    std::mutex mutex_;
    std::map<std::uint64_t, HeapRegion> taken_;
    Bytes left_;
    std::uint64_t last_id_ = 0;
};

struct Fixture {
    explicit Fixture(Bytes limit)
        : source(new FakeRegions(limit)), heap(std::unique_ptr<RegionSource>(source), limit) {}
    FakeRegions* source;  // the heap's
    ArenaHeap heap;
};

}  // namespace

TEST_SUITE("client.arena_heap") {
    TEST_CASE("small blocks share a region and cost one request") {
        Fixture f(kGiB);
        std::set<std::byte*> blocks;
        for (int i = 0; i < 1000; ++i) blocks.insert(f.heap.allocate(1000).value());
        CHECK(blocks.size() == 1000);
        CHECK(f.source->asked == 1);
        for (std::byte* block : blocks) CHECK(f.heap.release(block));
        CHECK(f.source->live() == 1);
    }

    TEST_CASE("a big block has a region of its own that goes back with it") {
        Fixture f(kGiB);
        std::byte* block = f.heap.allocate(ArenaHeap::kBigBlock + 1).value();
        CHECK(f.source->live() == 1);
        CHECK(f.heap.release(block));
        CHECK(f.source->live() == 0);
    }

    TEST_CASE("in a small arena the heap takes little at first and in the end what fits") {
        Fixture f(10 * kMiB);
        CHECK(f.heap.allocate(1000).ok());
        CHECK(f.source->left() >= 9 * kMiB);
        CHECK(f.heap.allocate(kMiB).ok());
        CHECK(f.heap.allocate(9 * kMiB).error().code == Errc::kNoMemory);
        while (f.heap.allocate(64 * kKiB).ok()) continue;
        CHECK(f.source->left() < 128 * kKiB);
    }

    TEST_CASE("the more is allocated the seldomer the heap asks") {
        Fixture f(kGiB);
        for (int i = 0; i < 500; ++i) CHECK(f.heap.allocate(kMiB).ok());
        CHECK(f.source->live() < 12);
    }

    TEST_CASE(
        "further regions are fetched when the first is full and go back when they are empty") {
        Fixture f(kGiB);
        std::vector<std::byte*> blocks;
        while (f.source->live() < 3) blocks.push_back(f.heap.allocate(8 * kMiB).value());
        for (std::byte* block : blocks) CHECK(f.heap.release(block));
        CHECK(f.source->live() == 1);
    }

    TEST_CASE("what is no block of the heap is refused") {
        Fixture f(kGiB);
        alignas(64) std::byte stranger[64];
        CHECK_FALSE(f.heap.release(stranger));
        std::byte* block = f.heap.allocate(100).value();
        CHECK_FALSE(f.heap.release(block + 1));
        CHECK_FALSE(f.heap.release(block + 64));
        CHECK(f.heap.release(block));
        CHECK_FALSE(f.heap.release(block));
        std::byte* big = f.heap.allocate(ArenaHeap::kBigBlock + 1).value();
        CHECK_FALSE(f.heap.release(big + 64));
        CHECK(f.heap.release(big));
        CHECK_FALSE(f.heap.release(big));
    }

    TEST_CASE("threads share the heap") {
        Fixture f(kGiB);
        std::vector<std::thread> threads;
        std::vector<int> fine(4, 0);
        for (unsigned seed = 1; seed <= 4; ++seed) {
            threads.emplace_back([&, seed] {
                std::mt19937 random(seed);
                std::vector<std::pair<std::byte*, Bytes>> blocks;
                bool ok = true;
                for (int i = 0; i < 500 && ok; ++i) {
                    const Bytes bytes = random() % (256 * kKiB);
                    const auto block = f.heap.allocate(bytes);
                    ok = block.ok();
                    if (!ok) break;
                    std::memset(block.value(), static_cast<int>(seed), bytes);
                    blocks.emplace_back(block.value(), bytes);
                    if (blocks.size() < 20) continue;
                    const auto [first, length] = blocks.front();
                    for (Bytes at = 0; at < length; at += 61) {
                        ok = ok && first[at] == static_cast<std::byte>(seed);
                    }
                    ok = ok && f.heap.release(first);
                    blocks.erase(blocks.begin());
                }
                for (const auto& [block, bytes] : blocks) ok = f.heap.release(block) && ok;
                fine[seed - 1] = ok ? 1 : 0;
            });
        }
        for (auto& thread : threads) thread.join();
        CHECK(fine == std::vector<int>(4, 1));
        CHECK(f.source->live() == 1);
    }
}

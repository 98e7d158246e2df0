#include "libfabricshm/shm/heap.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <vector>

using namespace fabricshm;

namespace {

struct Piece {
    explicit Piece(Bytes bytes)
        : memory(static_cast<std::byte*>(std::aligned_alloc(4096, bytes))), bytes(bytes) {}
    ~Piece() { std::free(memory); }
    std::byte* memory;
    Bytes bytes;
};

bool is_aligned(const void* block) {
    return reinterpret_cast<std::uintptr_t>(block) % Heap::kAlign == 0;
}

// Allocates and frees at random, each block filled with its own byte; false when a block overlaps.
bool churn(Heap& heap, unsigned seed, int steps) {
    std::mt19937 random(seed);
    std::map<std::byte*, Bytes> blocks;
    for (int i = 0; i < steps; ++i) {
        const Bytes bytes = random() % 2000;
        std::byte* block = heap.allocate(bytes);
        if (block != nullptr) {
            std::memset(block, static_cast<int>(seed), bytes);
            blocks[block] = bytes;
        }
        if (blocks.size() < 50 && block != nullptr) continue;
        if (blocks.empty()) continue;
        const auto victim = blocks.begin();
        for (Bytes at = 0; at < victim->second; ++at) {
            if (victim->first[at] != static_cast<std::byte>(seed)) return false;
        }
        if (!heap.release(victim->first)) return false;
        blocks.erase(victim);
    }
    bool released = true;
    for (const auto& [block, bytes] : blocks) released = heap.release(block) && released;
    return released;
}

// The same heap without any cleverness: an array with the owner of each unit.
class Oracle {
  public:
    explicit Oracle(std::size_t units) : owner_(units, 0) {}

    bool agrees_with(Heap& heap, std::byte* piece, unsigned seed, int steps) {
        std::mt19937 random(seed);
        for (int step = 0; step < steps; ++step) {
            const bool agrees = random() % 2 == 0 ? allocate(heap, piece, random())
                                                  : release(heap, piece, random());
            if (!agrees || heap.empty() != live_.empty()) return false;
        }
        return true;
    }

  private:
    // Best fit: the first of the smallest runs of free units that are long enough.
    std::optional<std::size_t> find(std::size_t units) const {
        std::optional<std::size_t> best;
        std::size_t best_length = owner_.size() + 1;
        for (std::size_t at = 0; at < owner_.size();) {
            std::size_t end = at;
            while (end < owner_.size() && owner_[end] == 0) ++end;
            if (end - at >= units && end - at < best_length) {
                best = at;
                best_length = end - at;
            }
            at = end + 1;
        }
        return best;
    }

    bool allocate(Heap& heap, std::byte* piece, unsigned dice) {
        const Bytes bytes = dice % 7 == 0 ? dice % 8192 : dice % 600;
        const std::size_t units = bytes == 0 ? 1 : (bytes + Heap::kAlign - 1) / Heap::kAlign;
        const auto expected = find(units);
        const std::byte* block = heap.allocate(bytes);
        if (!expected) return block == nullptr;
        if (block != piece + *expected * Heap::kAlign) return false;
        live_[*expected] = units;
        for (std::size_t i = 0; i < units; ++i) owner_[*expected + i] = 1;
        return true;
    }

    // Any unit: most are no block's first one.
    bool release(Heap& heap, std::byte* piece, unsigned dice) {
        std::size_t unit = dice % owner_.size();
        const auto next = live_.lower_bound(unit);
        if (dice % 3 != 0 && next != live_.end()) unit = next->first;
        const auto found = live_.find(unit);
        const bool released = heap.release(piece + unit * Heap::kAlign);
        if (found == live_.end()) return !released;
        for (std::size_t i = 0; i < found->second; ++i) owner_[unit + i] = 0;
        live_.erase(found);
        return released;
    }

    std::vector<int> owner_;
    std::map<std::size_t, std::size_t> live_;
};

}  // namespace

TEST_SUITE("shm.heap") {
    TEST_CASE("blocks are aligned, apart and inside the piece") {
        const Piece piece(1 * kMiB);
        Heap heap(piece.memory, piece.bytes);
        std::byte* first = heap.allocate(100);
        std::byte* second = heap.allocate(0);
        REQUIRE(first != nullptr);
        REQUIRE(second != nullptr);
        CHECK(first != second);
        CHECK(is_aligned(first));
        CHECK(is_aligned(second));
        CHECK(first >= piece.memory);
        CHECK(second + Heap::kAlign <= piece.memory + piece.bytes);
    }

    TEST_CASE("a full heap refuses and what is freed is whole again") {
        const Piece piece(1 * kMiB);
        Heap heap(piece.memory, piece.bytes);
        CHECK(heap.allocate(piece.bytes + 1) == nullptr);
        CHECK(heap.allocate(~Bytes{0}) == nullptr);
        std::byte* all = heap.allocate(piece.bytes);
        REQUIRE(all != nullptr);
        CHECK(heap.allocate(0) == nullptr);
        CHECK(heap.release(all));
        CHECK(heap.empty());
        CHECK(heap.allocate(piece.bytes) == all);
    }

    TEST_CASE("blocks cost their bytes in whole lines and nothing more") {
        const Piece piece(64 * kKiB);
        Heap heap(piece.memory, piece.bytes);
        for (int i = 0; i < 1024; ++i) REQUIRE(heap.allocate(33) != nullptr);
        CHECK(heap.allocate(1) == nullptr);
    }

    TEST_CASE("the smallest hole that is large enough is taken") {
        const Piece piece(64 * kKiB);
        Heap heap(piece.memory, piece.bytes);
        std::byte* large = heap.allocate(8 * kKiB);
        heap.allocate(64);
        std::byte* small = heap.allocate(4 * kKiB);
        heap.allocate(64);
        CHECK(heap.release(large));
        CHECK(heap.release(small));
        CHECK(heap.allocate(3 * kKiB) == small);
        CHECK(heap.allocate(5 * kKiB) == large);
    }

    TEST_CASE("what is no block, or no block any more, is refused and nothing happens") {
        const Piece piece(64 * kKiB);
        Heap heap(piece.memory, piece.bytes);
        std::byte* first = heap.allocate(256);
        std::byte* second = heap.allocate(256);
        CHECK_FALSE(heap.release(first + 1));
        CHECK_FALSE(heap.release(first + 64));
        CHECK_FALSE(heap.release(first + 192));
        CHECK_FALSE(heap.release(second + 256));
        CHECK_FALSE(heap.release(piece.memory + piece.bytes));
        CHECK_FALSE(heap.release(piece.memory + piece.bytes - 64));
        CHECK_FALSE(heap.release(piece.memory - 64));
        CHECK_FALSE(heap.release(nullptr));
        CHECK(heap.release(first));
        CHECK_FALSE(heap.release(first));
        CHECK(heap.release(second));
        CHECK_FALSE(heap.release(second));
        CHECK(heap.empty());
        CHECK(heap.allocate(piece.bytes) == piece.memory);
    }

    TEST_CASE("a peer that writes over all of the piece corrupts contents and not the heap") {
        const Piece piece(256 * kKiB);
        Heap heap(piece.memory, piece.bytes);
        std::mt19937 random(7);
        std::vector<std::byte*> blocks;
        for (int round = 0; round < 200; ++round) {
            for (int i = 0; i < 20; ++i) {
                std::byte* block = heap.allocate(random() % 5000);
                if (block != nullptr) blocks.push_back(block);
            }
            for (Bytes at = 0; at < piece.bytes; ++at) {
                piece.memory[at] = static_cast<std::byte>(random());
            }
            while (blocks.size() > 15) {
                const std::size_t victim = random() % blocks.size();
                REQUIRE(heap.release(blocks[victim]));
                blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(victim));
            }
        }
        for (std::byte* block : blocks) CHECK(heap.release(block));
        CHECK(heap.allocate(piece.bytes) == piece.memory);
    }

    TEST_CASE("a random course gives what an array of units says") {
        for (unsigned seed = 1; seed <= 20; ++seed) {
            CAPTURE(seed);
            const Piece piece(32 * kKiB);
            Heap heap(piece.memory, piece.bytes);
            Oracle oracle(piece.bytes / Heap::kAlign);
            CHECK(oracle.agrees_with(heap, piece.memory, seed, 3000));
        }
    }

    TEST_CASE("the smallest piece that is allowed makes a heap") {
        const Piece piece(4096);
        Heap heap(piece.memory, Heap::kAlign);
        CHECK(heap.allocate(64) == piece.memory);
        CHECK(heap.allocate(0) == nullptr);
    }

    TEST_CASE("threads allocate and free without mixing up their blocks") {
        const Piece piece(4 * kMiB);
        Heap heap(piece.memory, piece.bytes);
        std::vector<std::thread> threads;
        std::vector<int> fine(4, 0);
        for (unsigned seed = 1; seed <= 4; ++seed) {
            threads.emplace_back([&, seed] { fine[seed - 1] = churn(heap, seed, 3000) ? 1 : 0; });
        }
        for (auto& thread : threads) thread.join();
        CHECK(fine == std::vector<int>(4, 1));
        CHECK(heap.empty());
    }
}

#include "libfabricshm/shm/heap.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <map>
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
        heap.release(victim->first);
        blocks.erase(victim);
    }
    for (const auto& [block, bytes] : blocks) heap.release(block);
    return true;
}

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
        CHECK(heap.holds(first));
        CHECK_FALSE(heap.holds(piece.memory + piece.bytes));
        CHECK_FALSE(heap.holds(first + 1));
    }

    TEST_CASE("a full heap refuses and what is freed is whole again") {
        const Piece piece(1 * kMiB);
        Heap heap(piece.memory, piece.bytes);
        CHECK(heap.allocate(piece.bytes) == nullptr);
        CHECK(heap.allocate(~Bytes{0}) == nullptr);
        const Bytes most = piece.bytes - Heap::kHeapOverhead - Heap::kBlockOverhead;
        std::byte* all = heap.allocate(most);
        REQUIRE(all != nullptr);
        CHECK(heap.allocate(Heap::kHeapOverhead + Heap::kBlockOverhead) == nullptr);
        heap.release(all);
        CHECK(heap.empty());
        all = heap.allocate(most);
        CHECK(all != nullptr);
    }

    TEST_CASE("the smallest piece that is allowed makes a heap") {
        const Piece piece(4096);
        Heap heap(piece.memory, 2 * Heap::kHeapOverhead);
        CHECK(heap.allocate(64) != nullptr);
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

// Grids on the CPU, for the bodies of CUDA kernels (kernels/cuda/span_body.hpp has what they ask
// for). SerialGrid: one thread after the other, for bodies that wait for nothing. ThreadGrid: a
// thread of the host for each of the grid's, so that the thread sanitizer sees the protocol.

#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cuda/span_body.hpp"

namespace test_support {

using kernels::cuda::Address;

template <class T>
Address address_of(T* pointer) {
    return reinterpret_cast<Address>(pointer);
}

/// Plain accesses: memcpy, since an address is aligned to its element only.
struct PlainMemory {
    template <class T>
    T load(Address from) const {
        if (from % alignof(T) != 0) std::abort();  // a GPU would fault
        T value;
        std::memcpy(&value, reinterpret_cast<const void*>(from), sizeof value);
        return value;
    }
    template <class T>
    void store(Address to, const T& value) const {
        if (to % alignof(T) != 0) std::abort();
        std::memcpy(reinterpret_cast<void*>(to), &value, sizeof value);
    }
};

class SerialGrid : public PlainMemory {
  public:
    SerialGrid(unsigned block, unsigned blocks, unsigned thread, unsigned threads)
        : block_(block), blocks_(blocks), thread_(thread), threads_(threads) {}
    unsigned block() const { return block_; }
    unsigned blocks() const { return blocks_; }
    unsigned thread() const { return thread_; }
    unsigned threads() const { return threads_; }

    // Bodies that wait call these; none of them runs here.
    void sync_block() const { std::abort(); }
    std::uint64_t& shared(int) const { std::abort(); }
    std::uint64_t load_acquire(Address) const { std::abort(); }
    void store_release(Address, std::uint64_t) const { std::abort(); }
    std::uint32_t load_acquire32(Address) const { std::abort(); }
    void store_release32(Address, std::uint32_t) const { std::abort(); }
    std::uint32_t fetch_add32(Address, std::uint32_t) const { std::abort(); }
    void fence() const { std::abort(); }
    std::uint64_t now_ns() const { std::abort(); }
    void pause(unsigned) const { std::abort(); }

  private:
    unsigned block_, blocks_, thread_, threads_;
};

/// Runs `body(grid)` as each thread of a grid of 3 blocks of 2 threads: few, so that short spans
/// are longer than the grid.
template <class Body>
void run_serial(const Body& body) {
    constexpr unsigned kBlocks = 3, kThreads = 2;
    for (unsigned block = 0; block < kBlocks; ++block) {
        for (unsigned thread = 0; thread < kThreads; ++thread) {
            SerialGrid grid(block, kBlocks, thread, kThreads);
            body(grid);
        }
    }
}

/// What disturbs the threads of a grid.
struct Disturbance {
    std::uint64_t seed = 0;        // 0: none; else threads yield now and then before an access
    std::uint64_t dies_after = 0;  // accesses to words; 0: never. For grids of one thread.
};

/// Thrown by a thread that dies in the midst of its body, as a killed process would end.
struct Killed {};

/// Rises whenever it is read: waits end in time without a sleep.
struct FakeClock {
    std::atomic<std::uint64_t> now_ns{1};
};

struct BlockState {
    explicit BlockState(unsigned threads) : barrier(threads) {}
    std::barrier<> barrier;
    std::uint64_t shared[kernels::cuda::kSharedWords] = {};
};

class ThreadGrid : public PlainMemory {
  public:
    ThreadGrid(unsigned blocks, unsigned thread, unsigned threads, BlockState& state,
               FakeClock& clock, Disturbance disturbance)
        : blocks_(blocks),
          thread_(thread),
          threads_(threads),
          state_(state),
          clock_(clock),
          disturbance_(disturbance),
          random_(disturbance.seed) {}

    unsigned blocks() const { return blocks_; }
    unsigned thread() const { return thread_; }
    unsigned threads() const { return threads_; }
    unsigned block() const { std::abort(); }  // bodies that wait go by tickets
    void sync_block() { state_.barrier.arrive_and_wait(); }
    std::uint64_t& shared(int index) { return state_.shared[index]; }

    std::uint64_t load_acquire(Address from) {
        touch();
        return word<std::uint64_t>(from).load(std::memory_order_acquire);
    }
    void store_release(Address to, std::uint64_t value) {
        touch();
        word<std::uint64_t>(to).store(value, std::memory_order_release);
    }
    std::uint32_t load_acquire32(Address from) {
        touch();
        return word<std::uint32_t>(from).load(std::memory_order_acquire);
    }
    void store_release32(Address to, std::uint32_t value) {
        touch();
        word<std::uint32_t>(to).store(value, std::memory_order_release);
    }
    std::uint32_t fetch_add32(Address at, std::uint32_t value) {
        touch();
        return word<std::uint32_t>(at).fetch_add(value, std::memory_order_acq_rel);
    }
    void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
    // Relaxed: a clock orders nothing.
    std::uint64_t now_ns() { return clock_.now_ns.fetch_add(1000, std::memory_order_relaxed); }
    void pause(unsigned) { std::this_thread::yield(); }

  private:
    template <class Word>
    static std::atomic_ref<Word> word(Address at) {
        return std::atomic_ref<Word>(*reinterpret_cast<Word*>(at));
    }
    void touch() {
        ++touches_;
        if (disturbance_.dies_after != 0 && touches_ > disturbance_.dies_after) throw Killed{};
        if (disturbance_.seed == 0) return;
        random_ = random_ * 6364136223846793005u + 1442695040888963407u;
        for (std::uint64_t n = random_ >> 62; n > 1; --n) std::this_thread::yield();
    }

    unsigned blocks_, thread_, threads_;
    BlockState& state_;
    FakeClock& clock_;
    Disturbance disturbance_;
    std::uint64_t random_;
    std::uint64_t touches_ = 0;
};

/// A grid's shape and what disturbs it.
struct GridShape {
    unsigned blocks = 2;
    unsigned threads = 2;
    Disturbance disturbance;
};

/// Starts the threads of a grid, which all run `body(grid)`. Whether it ran to its end is in
/// `*lived` when they are joined.
template <class Body>
void start_grid(const GridShape& shape, FakeClock& clock, std::vector<std::thread>& threads,
                std::atomic<bool>* lived, Body body) {
    for (unsigned block = 0; block < shape.blocks; ++block) {
        auto state = std::make_shared<BlockState>(shape.threads);
        for (unsigned thread = 0; thread < shape.threads; ++thread) {
            Disturbance disturbance = shape.disturbance;
            if (disturbance.seed != 0) disturbance.seed += block * 64 + thread;
            threads.emplace_back([=, &clock] {
                ThreadGrid grid(shape.blocks, thread, shape.threads, *state, clock, disturbance);
                try {
                    body(grid);
                } catch (const Killed&) {
                    lived->store(false, std::memory_order_relaxed);  // read after join()
                }
            });
        }
    }
}

}  // namespace test_support

// The exchange of groups over several hosts, between children of one test.

#pragma once

#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <ctime>

namespace test_support {

/// An all-gather in memory that children share, as MPI or a store would give it. Make it before
/// they are forked.
class ExchangeBoard {
  public:
    ExchangeBoard() {
        void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        board_ = static_cast<Board*>(memory);
    }
    ~ExchangeBoard() { ::munmap(board_, sizeof(Board)); }
    ExchangeBoard(const ExchangeBoard&) = delete;
    ExchangeBoard& operator=(const ExchangeBoard&) = delete;

    void gather(int round, int rank, int world, const void* mine, std::size_t bytes, void* all) {
        // Rooms are used again: a rank that is two rounds on has seen all others leave this one.
        const int at = round % kRounds;
        std::byte* room = board_->bytes[at];
        std::memcpy(room + static_cast<std::size_t>(rank) * bytes, mine, bytes);
        board_->arrived[at].fetch_add(1);
        // The others may still load libraries, for which they need the processors.
        constexpr timespec kNap{0, 200'000};
        for (int turn = 0; board_->arrived[at].load() < world * (round / kRounds + 1); ++turn) {
            if (turn < 100) ::sched_yield();
            if (turn >= 100) ::nanosleep(&kNap, nullptr);
        }
        std::memcpy(all, room, static_cast<std::size_t>(world) * bytes);
    }

  private:
    static constexpr int kRounds = 16;
    struct Board {
        std::atomic<int> arrived[kRounds];
        std::byte bytes[kRounds][1 << 17];
    };
    Board* board_;
};

}  // namespace test_support

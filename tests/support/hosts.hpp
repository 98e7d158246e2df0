// Ranks of a group over several "hosts": an arena each, of one daemon. For children, which report
// by exit code.

#pragma once

#include <fabricshm/fabricshm.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/job.hpp"

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
        while (board_->arrived[at].load() < world * (round / kRounds + 1)) ::sched_yield();
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

/// Where rank r of a group over hosts with so many ranks each is.
inline int host_of(const std::vector<int>& counts, int rank) {
    int host = 0;
    for (int left = rank; left >= counts[static_cast<std::size_t>(host)]; ++host) {
        left -= counts[static_cast<std::size_t>(host)];
    }
    return host;
}
inline int world_of(const std::vector<int>& counts) {
    int world = 0;
    for (const int count : counts) world += count;
    return world;
}

/// A rank's part of the exchange.
struct ExchangePlace {
    ExchangeBoard* board;
    int rank;
    int world;
    int round = 0;

    static int exchange(void* context, const void* mine, std::size_t bytes, void* all) {
        auto* place = static_cast<ExchangePlace*>(context);
        place->board->gather(place->round++, place->rank, place->world, mine, bytes, all);
        return 0;
    }
};

inline fabricshm_hosts_spec hosts_spec(ExchangePlace& place, const char* name,
                                       const char* trusted = "127.0.0.0/8") {
    fabricshm_hosts_spec spec{};
    spec.struct_size = sizeof spec;
    spec.name = name;
    spec.rank = place.rank;
    spec.world = place.world;
    spec.exchange = &ExchangePlace::exchange;
    spec.context = &place;
    spec.trusted = trusted;
    spec.timeout_ms = 30'000;
    return spec;
}

/// A rank that has joined; `group` is nullptr, and the reason on stderr, when it could not.
struct HostsRank {
    HostsRank(const std::string& socket, ExchangeBoard& board, const std::vector<int>& counts,
              int which, const char* trusted = "127.0.0.0/8")
        : job(socket, 160 << 20, ("pool" + std::to_string(host_of(counts, which))).c_str()),
          rank(which),
          world(world_of(counts)) {
        if (!job.ok) return;
        ExchangePlace place{&board, rank, world};
        const fabricshm_hosts_spec spec = hosts_spec(place, "group", trusted);
        if (fabricshm_group_join_hosts(job.arena, &spec, &group) != 0) failed(100);
    }

    Job job;
    int rank;
    int world;
    fabricshm_group* group = nullptr;
};

}  // namespace test_support

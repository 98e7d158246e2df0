// Ranks of a group over several "hosts": an arena each, of one daemon. For children, which report
// by exit code.

#pragma once

#include <fabricshm/fabricshm.h>

#include <string>
#include <vector>

#include "tests/support/exchange_board.hpp"
#include "tests/support/job.hpp"

namespace test_support {

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
        : HostsRank(socket, board, host_of(counts, which), which, world_of(counts), trusted) {}

    HostsRank(const std::string& socket, ExchangeBoard& board, int host, int which, int all,
              const char* trusted = "127.0.0.0/8")
        : job(socket, 160 << 20, ("pool" + std::to_string(host)).c_str()), rank(which), world(all) {
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

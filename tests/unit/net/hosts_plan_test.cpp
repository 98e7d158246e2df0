// Which bytes ranks of different hosts exchange, against an oracle that goes byte by byte.

#include "libfabricshm/net/hosts_plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

using namespace fabricshm;
using net::HostsPlan;
using net::Segment;

namespace {

// The numbers of ranks on each host, dealt out so that ranks of a host are not neighbours.
HostsPlan plan_of(const std::vector<int>& counts) {
    std::vector<std::uint64_t> pools;
    std::vector<int> left = counts;
    for (bool more = true; more;) {
        more = false;
        for (std::size_t host = 0; host < left.size(); ++host) {
            if (left[host]-- <= 0) continue;
            pools.push_back(1000 + 7 * host);
            more = true;
        }
    }
    return HostsPlan(pools);
}

// Which local rank of each host owns a byte: by the lengths of its parts alone.
int owner_of(const HostsPlan& plan, int host, Bytes byte, Bytes bytes) {
    Bytes end = 0;
    for (const int rank : plan.ranks_of(host)) {
        end += plan.part_bytes(rank, bytes);
        if (byte < end) return rank;
    }
    return -1;
}

std::vector<std::vector<int>> all_counts() {
    std::vector<std::vector<int>> all;
    std::mt19937 random(11);
    for (int hosts = 1; hosts <= 9; ++hosts) {
        all.push_back(std::vector<int>(static_cast<std::size_t>(hosts), 2));
        for (int more = 0; more < 4; ++more) {
            std::vector<int> counts;
            for (int host = 0; host < hosts; ++host) {
                counts.push_back(1 + static_cast<int>(random() % 5));
            }
            all.push_back(counts);
        }
    }
    return all;
}

constexpr Bytes kSizes[] = {0, 1, 64, 65, 1000, 2049};

}  // namespace

TEST_SUITE("net.hosts_plan") {
    TEST_CASE("ranks with equal pools are one host, in the order of their first ranks") {
        const std::uint64_t pools[] = {9, 4, 9, 7, 4};
        const HostsPlan plan(pools);
        CHECK(plan.hosts() == 3);
        CHECK(plan.ranks_of(0) == std::vector<int>{0, 2});
        CHECK(plan.ranks_of(1) == std::vector<int>{1, 4});
        CHECK(plan.ranks_of(2) == std::vector<int>{3});
        CHECK(plan.local_of(4) == 1);
        CHECK(plan.leader_of(1) == 1);
        CHECK(plan.remote(0, 1));
        CHECK_FALSE(plan.remote(0, 2));
        CHECK_FALSE(plan.even());
        CHECK(plan.smallest_host() == 1);
    }

    TEST_CASE("parts follow each other and cover the block, on every host") {
        for (const auto& counts : all_counts()) {
            const HostsPlan plan = plan_of(counts);
            for (const Bytes bytes : kSizes) {
                for (int host = 0; host < plan.hosts(); ++host) {
                    Bytes at = 0;
                    for (const int rank : plan.ranks_of(host)) {
                        CHECK(plan.part_begin(host, plan.local_of(rank), bytes) == at);
                        if (at != bytes) CHECK(at % net::kPartUnit == 0);
                        at += plan.part_bytes(rank, bytes);
                    }
                    CHECK(at == bytes);
                }
            }
        }
    }

    TEST_CASE("in one step each byte goes from its owner on each host to its owner on each other") {
        for (const auto& counts : all_counts()) {
            const HostsPlan plan = plan_of(counts);
            for (const Bytes bytes : kSizes) {
                for (int rank = 0; rank < plan.world(); ++rank) {
                    const int own = plan.host_of(rank);
                    for (int host = 0; host < plan.hosts(); ++host) {
                        std::map<Bytes, int> planned;
                        bool once = true;
                        for (const Segment& segment : plan.crossings(rank, host, bytes)) {
                            for (Bytes i = 0; i < segment.bytes; ++i) {
                                once = planned.emplace(segment.offset + i, segment.peer).second &&
                                       once;
                            }
                        }
                        std::map<Bytes, int> wanted;
                        for (Bytes byte = 0; byte < bytes; ++byte) {
                            if (owner_of(plan, own, byte, bytes) != rank) continue;
                            wanted[byte] = owner_of(plan, host, byte, bytes);
                        }
                        REQUIRE(once);
                        REQUIRE(planned == wanted);
                    }
                }
            }
        }
    }

    TEST_CASE("in two steps each byte is reduced by one host, and all others agree on which") {
        for (const auto& counts : all_counts()) {
            const HostsPlan plan = plan_of(counts);
            if (plan.hosts() < 2) continue;
            for (const Bytes bytes : kSizes) {
                std::vector<int> reducers(bytes, -1);
                bool agree = true;
                for (int rank = 0; rank < plan.world(); ++rank) {
                    for (int host = 0; host < plan.hosts(); ++host) {
                        const auto own = plan.crossings(rank, plan.host_of(rank), bytes, host);
                        for (const Segment& segment : own) {
                            CHECK(segment.peer == rank);
                            for (Bytes i = 0; i < segment.bytes; ++i) {
                                int& reducer = reducers[segment.offset + i];
                                if (reducer < 0) reducer = host;
                                agree = agree && reducer == host;
                            }
                        }
                    }
                }
                CHECK(agree);
                CHECK(std::ranges::all_of(reducers, [](int reducer) { return reducer >= 0; }));
            }
        }
    }

    TEST_CASE("what a rank sends is what its peer expects, in the same order") {
        for (const auto& counts : all_counts()) {
            const HostsPlan plan = plan_of(counts);
            for (const Bytes bytes : kSizes) {
                for (int from = 0; from < plan.world(); ++from) {
                    for (int to = 0; to < plan.world(); ++to) {
                        if (!plan.remote(from, to)) continue;
                        for (int reducer = -1; reducer < plan.hosts(); ++reducer) {
                            std::vector<Segment> sent;
                            for (Segment each :
                                 plan.crossings(from, plan.host_of(to), bytes, reducer)) {
                                if (each.peer != to) continue;
                                each.peer = 0;
                                sent.push_back(each);
                            }
                            std::vector<Segment> expected;
                            for (Segment each :
                                 plan.crossings(to, plan.host_of(from), bytes, reducer)) {
                                if (each.peer != from) continue;
                                each.peer = 0;
                                expected.push_back(each);
                            }
                            REQUIRE(sent == expected);
                        }
                    }
                }
            }
        }
    }
}

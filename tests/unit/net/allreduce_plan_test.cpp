#include "libfabricshm/net/allreduce_plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace fabricshm;
using namespace fabricshm::net;

namespace {

HostsPlan plan_of(const std::vector<int>& ranks) {
    std::vector<std::uint64_t> pools;
    for (std::size_t host = 0; host < ranks.size(); ++host) {
        pools.insert(pools.end(), static_cast<std::size_t>(ranks[host]), host);
    }
    return HostsPlan(pools);
}

}  // namespace

TEST_SUITE("net.allreduce_plan") {
    TEST_CASE("blocks cover all bytes, and no part is larger than what a rank stages") {
        for (const auto& ranks : std::vector<std::vector<int>>{{1, 1}, {2, 2}, {4, 1, 3}, {8, 8}}) {
            const HostsPlan plan = plan_of(ranks);
            const Bytes most = largest_message(plan);
            for (Bytes bytes = 4; bytes < 200 * kMiB; bytes = bytes * 3 + 4) {
                const AllreducePlan made = plan_allreduce(plan, bytes, most);
                Bytes sum = 0;
                for (std::uint64_t block = 0; block < made.blocks; ++block) {
                    CHECK(made.bytes_of(block) > 0);
                    sum += made.bytes_of(block);
                }
                CHECK(sum == bytes);
                if (made.is_small) continue;
                const int host_of_least =
                    static_cast<int>(std::min_element(ranks.begin(), ranks.end()) - ranks.begin());
                const int rank = plan.leader_of(host_of_least);
                CHECK(plan.part_bytes(rank, made.each) <= most);
            }
        }
    }

    TEST_CASE("small buffers need no parts, two hosts no second step") {
        const HostsPlan two = plan_of({2, 2});
        const HostsPlan three = plan_of({2, 2, 2});
        CHECK(plan_allreduce(two, 32 * kKiB, 256 * kKiB).is_small);
        CHECK_FALSE(plan_allreduce(two, 32 * kKiB + 4, 256 * kKiB).is_small);
        CHECK_FALSE(plan_allreduce(two, 1 * kGiB, 256 * kKiB).has_two_steps);
        CHECK_FALSE(plan_allreduce(three, 128 * kKiB, 256 * kKiB).has_two_steps);
        CHECK(plan_allreduce(three, 128 * kKiB + 4, 256 * kKiB).has_two_steps);
    }

    TEST_CASE("parts are small enough for a cache, and the shares of many hosts not too small") {
        const HostsPlan two = plan_of({2, 2});
        CHECK(plan_allreduce(two, 64 * kKiB, 256 * kKiB).blocks == 1);
        for (const Bytes bytes : {1 * kMiB, 32 * kMiB, 1 * kGiB}) {
            CHECK(plan_allreduce(two, bytes, 256 * kKiB).each == 128 * kKiB);
        }
        const HostsPlan sixteen = plan_of(std::vector<int>(16, 1));
        const AllreducePlan made = plan_allreduce(sixteen, 1 * kGiB, 256 * kKiB);
        CHECK(sixteen.part_bytes(0, made.each) / 16 >= 16 * kKiB);
        CHECK(plan_allreduce(sixteen, 1 * kGiB, 32 * kKiB).each == 32 * kKiB);
    }

    TEST_CASE("every byte is added up once on each host, or on one of all hosts in two steps") {
        constexpr Bytes kBlock = 100 * kKiB + 60;
        for (const auto& ranks :
             std::vector<std::vector<int>>{{1, 1}, {2, 3}, {4, 1, 3}, {2, 2, 2, 2}}) {
            const HostsPlan plan = plan_of(ranks);
            for (const bool two : {false, true}) {
                std::vector<int> added(kBlock);
                std::vector<std::vector<int>> arrived(static_cast<std::size_t>(plan.world()),
                                                      std::vector<int>(kBlock));
                for (int rank = 0; rank < plan.world(); ++rank) {
                    const BlockExchange with = exchange_of(plan, rank, kBlock, two);
                    for (const Segment& own : with.own) {
                        for (Bytes i = 0; i < own.bytes; ++i) ++added[own.offset + i];
                    }
                    for (const auto& sent : with.sent) {
                        for (const Segment& one : sent) {
                            auto& there = arrived[static_cast<std::size_t>(one.peer)];
                            for (Bytes i = 0; i < one.bytes; ++i) ++there[one.offset + i];
                        }
                    }
                }
                for (const int count : added) REQUIRE(count == (two ? 1 : plan.hosts()));
                // What a rank adds up has come from each other host once.
                for (int rank = 0; rank < plan.world(); ++rank) {
                    const BlockExchange with = exchange_of(plan, rank, kBlock, two);
                    std::vector<int> expected(kBlock);
                    for (const Segment& own : with.own) {
                        for (Bytes i = 0; i < own.bytes; ++i) {
                            expected[own.offset + i] = plan.hosts() - 1;
                        }
                    }
                    REQUIRE(arrived[static_cast<std::size_t>(rank)] == expected);
                }
            }
        }
    }
}

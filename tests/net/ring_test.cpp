// Allreduce along a ring of hosts, with a plan that wants one for few hosts. Hosts are arenas of
// this process's children; each child is a rank.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "libfabricshm/net/hosts_group.hpp"
#include "tests/support/children.hpp"
#include "tests/support/exchange_board.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using net::HostsGroup;
using net::HostsSpec;
using test_support::ExchangeBoard;
using test_support::run_children;
using test_support::TestArena;

namespace {

using Places = std::vector<int>;  // [rank]: its host

const Places kLayouts[] = {{0, 1, 2}, {0, 1, 2, 3}, {0, 0, 1, 2, 2, 2}, {0, 1, 2, 0, 1, 0}};

int hosts_of(const Places& places) {
    return *std::ranges::max_element(places) + 1;
}

// Runs `body` on every rank of a group that sums up along a ring from three hosts on.
void check_all(const Places& places, const std::function<int(HostsGroup&)>& body) {
    ::setenv("FABRIC_NET_LIBRARY", NET_LIBRARY, 1);
    ExchangeBoard board;
    std::vector<std::unique_ptr<TestArena>> arenas;
    for (int host = 0; host < hosts_of(places); ++host) {
        const auto ranks = static_cast<int>(std::ranges::count(places, host));
        arenas.push_back(std::make_unique<TestArena>(ranks, 16 * kMiB));
    }
    const int world = static_cast<int>(places.size());
    const auto codes = run_children(world, [&](int rank) -> int {
        TestArena& arena =
            *arenas[static_cast<std::size_t>(places[static_cast<std::size_t>(rank)])];
        HostsSpec spec;
        spec.rank = rank;
        spec.world = world;
        spec.host = "here";
        spec.pool = static_cast<std::uint64_t>(places[static_cast<std::size_t>(rank)]) + 1;
        spec.trusted = "127.0.0.0/8";
        // That of rank 0 counts.
        ::setenv("FABRIC_NET_RING", rank == 0 ? "3" : "200", 1);
        int round = 0;
        spec.exchange = [&](const void* mine, std::size_t bytes, void* all) {
            board.gather(round++, rank, world, mine, bytes, all);
            return true;
        };
        spec.join = [&](int local, int, TimePoint deadline) {
            return Group::attach(arena.place(local), deadline);
        };
        spec.leave = [](std::uint64_t, int) {};
        spec.allocate = [](Bytes bytes) { return new std::byte[bytes]; };
        spec.release = [](const std::byte* block) { delete[] block; };
        auto joined =
            HostsGroup::join(std::move(spec), deadline_from_now(std::chrono::seconds(30)));
        if (!joined.ok()) {
            std::fprintf(stderr, "rank %d: %s\n", rank, describe(joined.error()).c_str());
            return 1;
        }
        if (!(*joined)->plan().rings()) return 2;
        const int code = body(**joined);
        // All are through before any leaves.
        Call barrier;
        barrier.deadline = deadline_from_now(std::chrono::seconds(30));
        return (*joined)->run(barrier).ok() ? code : 3;
    });
    CHECK(codes == std::vector<int>(places.size(), 0));
}

template <typename T>
bool allreduce(HostsGroup& group, kernels::DType dtype, kernels::ReduceOp op,
               const std::vector<T>& input, std::vector<T>& output) {
    Call call;
    call.kind = Kind::kAllreduce;
    call.dtype = dtype;
    call.op = op;
    call.input = reinterpret_cast<const std::byte*>(input.data());
    call.output = reinterpret_cast<std::byte*>(output.data());
    call.count = input.size();
    call.deadline = deadline_from_now(std::chrono::seconds(30));
    const auto result = group.run(call);
    if (!result.ok()) std::fprintf(stderr, "%s\n", describe(result.error()).c_str());
    return result.ok();
}

std::int64_t whole(int rank, std::size_t place) {
    return static_cast<std::int64_t>(place % 1'013) * (rank + 1) + rank;
}

float fraction(int rank, std::size_t place) {
    return 1.0f / static_cast<float>(3 + place % 977 + 50 * static_cast<std::size_t>(rank));
}

// Each host's ranks added up in their order, then the hosts along the ring from `first` on.
float along_ring(const Places& places, std::size_t place, int first) {
    float sum = 0;
    for (int step = 0; step < hosts_of(places); ++step) {
        const int host = (first + step) % hosts_of(places);
        float here = 0;
        for (std::size_t rank = 0; rank < places.size(); ++rank) {
            if (places[rank] == host) here += fraction(static_cast<int>(rank), place);
        }
        sum = step == 0 ? here : sum + here;
    }
    return sum;
}

}  // namespace

TEST_SUITE("net.ring") {
    TEST_CASE("a number of hosts that is none is refused by the variable's name") {
        for (const char* bad : {"2", "257", "-3", "x", "3x", "99999999999999999999"}) {
            ::setenv("FABRIC_NET_RING", bad, 1);
            const auto joined = HostsGroup::join({}, deadline_from_now(std::chrono::seconds(1)));
            REQUIRE_FALSE(joined.ok());
            CHECK(joined.error().code == Errc::kInvalid);
            CHECK(describe(joined.error()).find("FABRIC_NET_RING is not") != std::string::npos);
        }
    }

    TEST_CASE("sums, averages and maxima of whole numbers are right, in place too") {
        for (const Places& places : kLayouts) {
            check_all(places, [](HostsGroup& group) -> int {
                using kernels::ReduceOp;
                for (const std::size_t count : {20'000, 131'073, 700'001}) {
                    std::vector<std::int64_t> input(count);
                    for (std::size_t i = 0; i < count; ++i) input[i] = whole(group.rank(), i);
                    std::vector<std::int64_t> output = input;
                    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
                        const bool in_place = op == ReduceOp::kMax;
                        std::vector<std::int64_t>& from = in_place ? output : input;
                        if (in_place) output = input;
                        if (!allreduce(group, kernels::DType::kI64, op, from, output)) return 10;
                        for (std::size_t i = 0; i < count; ++i) {
                            std::int64_t wanted = whole(0, i);
                            for (int rank = 1; rank < group.world(); ++rank) {
                                const std::int64_t next = whole(rank, i);
                                wanted = in_place ? std::max(wanted, next) : wanted + next;
                            }
                            if (output[i] != wanted) return 11;
                        }
                    }
                    std::vector<double> numbers(count);
                    for (std::size_t i = 0; i < count; ++i) {
                        numbers[i] = static_cast<double>(group.rank() * group.world()) +
                                     static_cast<double>(i % 64);
                    }
                    std::vector<double> averages(count);
                    if (!allreduce(group, kernels::DType::kF64, ReduceOp::kAvg, numbers,
                                   averages)) {
                        return 12;
                    }
                    const double middle =
                        static_cast<double>(group.world() * (group.world() - 1)) / 2;
                    for (std::size_t i = 0; i < count; ++i) {
                        if (averages[i] != middle + static_cast<double>(i % 64)) return 13;
                    }
                }
                return 0;
            });
        }
    }

    TEST_CASE("sums of floats are those along the ring, the same bits on all ranks") {
        for (const Places& places : kLayouts) {
            check_all(places, [&](HostsGroup& group) -> int {
                constexpr std::size_t kCount = 200'003;
                std::vector<float> input(kCount);
                for (std::size_t i = 0; i < kCount; ++i) input[i] = fraction(group.rank(), i);
                std::vector<float> output(kCount);
                std::vector<float> again(kCount);
                const auto sum = kernels::ReduceOp::kSum;
                if (!allreduce(group, kernels::DType::kF32, sum, input, output)) return 20;
                if (!allreduce(group, kernels::DType::kF32, sum, input, again)) return 21;
                if (std::memcmp(output.data(), again.data(), kCount * sizeof(float)) != 0)
                    return 22;
                for (std::size_t i = 0; i < kCount; ++i) {
                    bool found = false;
                    for (int first = 0; !found && first < hosts_of(places); ++first) {
                        found = output[i] == along_ring(places, i, first);
                    }
                    if (!found) return 23;
                }
                // The least and the largest of what the ranks have are one.
                std::vector<float> least(kCount);
                std::vector<float> largest(kCount);
                if (!allreduce(group, kernels::DType::kF32, kernels::ReduceOp::kMin, output,
                               least) ||
                    !allreduce(group, kernels::DType::kF32, kernels::ReduceOp::kMax, output,
                               largest)) {
                    return 24;
                }
                return least == output && largest == output ? 0 : 25;
            });
        }
    }
}

// Gather, scatter, all_to_all and scans of groups over several hosts, against what each rank can
// work out by itself: every input follows from the rank and the place.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/hosts.hpp"

using test_support::Child;
using test_support::Daemon;
using test_support::ExchangeBoard;
using test_support::failed;
using test_support::Gate;
using test_support::HostsRank;
using test_support::run_children;

namespace {

using Ints = std::vector<std::int32_t>;
using Counts = std::vector<std::uint64_t>;
using Places = std::vector<int>;  // [rank]: its host

// The last two are not numbered host by host.
const Places kLayouts[] = {{0, 0, 1, 1}, {0, 1}, {0, 0, 0, 1}, {0, 1, 0, 1}, {0, 1, 2, 0, 0}};
constexpr std::int32_t kUntouched = -7;

std::int32_t value(int rank, std::uint64_t place) {
    return rank * 100'003 + static_cast<std::int32_t>(place % 99'991) + 1;
}

Ints input_of(int rank, std::uint64_t count) {
    Ints made(count);
    for (std::uint64_t i = 0; i < count; ++i) made[i] = value(rank, i);
    return made;
}

// Of part `rank` where each rank r has counts[r]: where it begins.
std::uint64_t begin_of(const Counts& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, std::uint64_t{0});
}

fabricshm_call call_of(fabricshm_kind kind, const Counts& counts, int root) {
    fabricshm_call call =
        fabricshm_call_make(kind, FABRICSHM_I32, FABRICSHM_SUM, nullptr, nullptr, counts[0]);
    const bool equal = std::ranges::all_of(counts, [&](auto one) { return one == counts[0]; });
    if (!equal) call.counts = counts.data();
    call.root = root;
    return call;
}

int gathers(const HostsRank& member, const Counts& counts, int root, bool in_place) {
    const auto own = static_cast<std::size_t>(member.rank);
    const bool is_root = member.rank == root;
    Ints input = input_of(member.rank, counts[own]);
    Ints output(is_root ? begin_of(counts, member.world) : 0, kUntouched);
    fabricshm_call call = call_of(FABRICSHM_GATHER, counts, root);
    call.input = input.data();
    call.output = output.data();
    if (is_root && in_place) {
        std::ranges::copy(input,
                          output.begin() + static_cast<std::ptrdiff_t>(begin_of(counts, root)));
        call.input = &output[begin_of(counts, root)];
    }
    if (fabricshm_run(member.group, &call) != 0) return failed(10);
    if (!is_root) return 0;
    Ints wanted;
    for (int rank = 0; rank < member.world; ++rank) {
        const Ints part = input_of(rank, counts[static_cast<std::size_t>(rank)]);
        wanted.insert(wanted.end(), part.begin(), part.end());
    }
    return output == wanted ? 0 : 11;
}

int scatters(const HostsRank& member, const Counts& counts, int root, bool in_place) {
    const auto own = static_cast<std::size_t>(member.rank);
    const bool is_root = member.rank == root;
    Ints input = input_of(root, is_root ? begin_of(counts, member.world) : 0);
    Ints output(counts[own] + 1, kUntouched);
    fabricshm_call call = call_of(FABRICSHM_SCATTER, counts, root);
    call.input = input.data();
    call.output = output.data();
    std::int32_t* result = output.data();
    if (is_root && in_place) call.output = result = &input[begin_of(counts, root)];
    if (fabricshm_run(member.group, &call) != 0) return failed(20);
    if (output.back() != kUntouched) return 21;
    for (std::uint64_t i = 0; i < counts[own]; ++i) {
        if (result[i] != value(root, begin_of(counts, member.rank) + i)) return 22;
    }
    return 0;
}

int exchanges(const HostsRank& member, std::uint64_t count, bool in_place) {
    const auto world = static_cast<std::uint64_t>(member.world);
    Ints input = input_of(member.rank, count * world);
    Ints output(count * world, kUntouched);
    fabricshm_call call = fabricshm_call_make(FABRICSHM_ALL_TO_ALL, FABRICSHM_I32, FABRICSHM_SUM,
                                              input.data(), output.data(), count);
    if (in_place) call.output = input.data();
    if (fabricshm_run(member.group, &call) != 0) return failed(30);
    const Ints& result = in_place ? input : output;
    for (std::uint64_t i = 0; i < count * world; ++i) {
        const int from = static_cast<int>(i / count);
        const std::uint64_t place = count * static_cast<std::uint64_t>(member.rank) + i % count;
        if (result[i] != value(from, place)) return 31;
    }
    return 0;
}

// What rank `from` sends to rank `to`: some pairs have nothing.
std::uint64_t pair_count(int from, int to) {
    return static_cast<std::uint64_t>(from * 7 + to * 3) % 5 * 20'011;
}

int exchanges_with_counts(const HostsRank& member) {
    Counts sent;
    Counts wanted;
    for (int rank = 0; rank < member.world; ++rank) {
        sent.push_back(pair_count(member.rank, rank));
        wanted.push_back(pair_count(rank, member.rank));
    }
    const Ints input = input_of(member.rank, begin_of(sent, member.world));
    Ints output(begin_of(wanted, member.world), kUntouched);
    fabricshm_call call = fabricshm_call_make(FABRICSHM_ALL_TO_ALL, FABRICSHM_I32, FABRICSHM_SUM,
                                              input.data(), output.data(), 0);
    call.counts = sent.data();
    call.recv_counts = wanted.data();
    if (fabricshm_run(member.group, &call) != 0) return failed(35);
    for (int from = 0; from < member.world; ++from) {
        std::uint64_t begin = 0;  // of the part in what `from` sends
        for (int rank = 0; rank < member.rank; ++rank) begin += pair_count(from, rank);
        for (std::uint64_t i = 0; i < pair_count(from, member.rank); ++i) {
            if (output[begin_of(wanted, from) + i] != value(from, begin + i)) return 36;
        }
    }
    return 0;
}

int scans(const HostsRank& member, fabricshm_kind kind, std::uint64_t count, bool in_place) {
    Ints input = input_of(member.rank, count);
    Ints output(count + 1, kUntouched);
    fabricshm_call call =
        fabricshm_call_make(kind, FABRICSHM_I32, FABRICSHM_SUM, input.data(), output.data(), count);
    if (in_place) call.output = input.data();
    if (fabricshm_run(member.group, &call) != 0) return failed(40);
    const Ints& result = in_place ? input : output;
    const bool none = kind == FABRICSHM_EXSCAN && member.rank == 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        std::int32_t wanted = 0;
        const int last = kind == FABRICSHM_SCAN ? member.rank : member.rank - 1;
        for (int rank = 0; rank <= last; ++rank) wanted += value(rank, i);
        if (none) wanted = in_place ? value(0, i) : kUntouched;
        if (result[i] != wanted) return 41;
    }
    return in_place || output.back() == kUntouched ? 0 : 42;
}

void check_all(const Places& places, const std::function<int(const HostsRank&)>& body) {
    const Daemon daemon({"--pool-capacity=1GiB"});
    ExchangeBoard board;
    const int world = static_cast<int>(places.size());
    const auto codes = run_children(world, [&](int rank) -> int {
        const HostsRank member(daemon.socket(), board, places[static_cast<std::size_t>(rank)], rank,
                               world);
        if (member.group == nullptr) return 1;
        const int code = body(member);
        fabricshm_group_leave(member.group);
        return code;
    });
    CHECK(codes == std::vector<int>(static_cast<std::size_t>(world), 0));
}

Counts equal_counts(const HostsRank& member, std::uint64_t count) {
    return Counts(static_cast<std::size_t>(member.world), count);
}

Counts uneven_counts(const HostsRank& member) {
    Counts counts;
    for (int rank = 0; rank < member.world; ++rank) {
        counts.push_back(rank == 1 ? 0 : static_cast<std::uint64_t>(rank) * 70'001 + 3);
    }
    return counts;
}

// Of floats: the ranks of each host up to `last` in their order, and these in the order of hosts.
float scanned(const Places& places, int last, const std::function<float(int)>& of) {
    float sum = 0;
    for (int host = 0; host <= *std::ranges::max_element(places); ++host) {
        float here = 0;
        bool any = false;
        for (int rank = 0; rank <= last; ++rank) {
            if (places[static_cast<std::size_t>(rank)] != host) continue;
            here = any ? here + of(rank) : of(rank);
            any = true;
        }
        if (any) sum = host == 0 ? here : sum + here;
    }
    return sum;
}

}  // namespace

TEST_SUITE("net.parts") {
    TEST_CASE("gather and scatter move the parts of all ranks, with every root") {
        for (const Places& places : kLayouts) {
            check_all(places, [](const HostsRank& member) -> int {
                for (const int root : {0, member.world - 1}) {
                    for (const bool in_place : {false, true}) {
                        for (const std::uint64_t count : {0, 1, 1'000, 70'001}) {
                            const Counts counts = equal_counts(member, count);
                            int code = gathers(member, counts, root, in_place);
                            if (code == 0) code = scatters(member, counts, root, in_place);
                            if (code != 0) return code;
                        }
                        const Counts counts = uneven_counts(member);
                        int code = gathers(member, counts, root, in_place);
                        if (code == 0) code = scatters(member, counts, root, in_place);
                        if (code != 0) return code;
                    }
                }
                return 0;
            });
        }
    }

    TEST_CASE("all_to_all gives each rank its part of every other, in place too") {
        for (const Places& places : kLayouts) {
            check_all(places, [](const HostsRank& member) -> int {
                for (const bool in_place : {false, true}) {
                    for (const std::uint64_t count : {0, 1, 1'000, 70'001}) {
                        const int code = exchanges(member, count, in_place);
                        if (code != 0) return code;
                    }
                }
                return exchanges_with_counts(member);
            });
        }
    }

    TEST_CASE("all_to_all with counts that do not fit each other is a mismatch") {
        check_all({0, 1}, [](const HostsRank& member) -> int {
            const Counts sent = {10, 20};
            const Counts wanted = member.rank == 0 ? Counts{10, 11} : Counts{20, 20};
            const Ints input(30);
            Ints output(40);
            fabricshm_call call = fabricshm_call_make(
                FABRICSHM_ALL_TO_ALL, FABRICSHM_I32, FABRICSHM_SUM, input.data(), output.data(), 0);
            call.counts = sent.data();
            call.recv_counts = wanted.data();
            // Rank 1 sends 10 to rank 0, which wants 11 of it.
            const int code = fabricshm_run(member.group, &call);
            if (member.rank == 0) return code == FABRICSHM_EMISMATCH ? 0 : failed(50);
            return code == FABRICSHM_EMISMATCH || code == 0 ? 0 : failed(51);
        });
    }

    TEST_CASE("scans give the sum of the ranks up to this one, or before it") {
        for (const Places& places : kLayouts) {
            check_all(places, [](const HostsRank& member) -> int {
                for (const fabricshm_kind kind : {FABRICSHM_SCAN, FABRICSHM_EXSCAN}) {
                    for (const bool in_place : {false, true}) {
                        for (const std::uint64_t count : {0, 1, 1'000, 70'001}) {
                            const int code = scans(member, kind, count, in_place);
                            if (code != 0) return code;
                        }
                    }
                }
                return 0;
            });
        }
    }

    TEST_CASE("a scan of floats adds up each host's ranks, and then the hosts, in their order") {
        for (const Places& places : kLayouts) {
            check_all(places, [&](const HostsRank& member) -> int {
                constexpr std::size_t kCount = 3'001;
                const auto of = [](int rank, std::size_t i) {
                    return 1.0f / static_cast<float>(3 + i + 131 * static_cast<std::size_t>(rank));
                };
                std::vector<float> input(kCount);
                std::vector<float> output(kCount);
                for (std::size_t i = 0; i < kCount; ++i) input[i] = of(member.rank, i);
                const fabricshm_call call =
                    fabricshm_call_make(FABRICSHM_SCAN, FABRICSHM_F32, FABRICSHM_SUM, input.data(),
                                        output.data(), kCount);
                if (fabricshm_run(member.group, &call) != 0) return failed(60);
                for (std::size_t i = 0; i < kCount; ++i) {
                    const float wanted =
                        scanned(places, member.rank, [&](int rank) { return of(rank, i); });
                    if (std::memcmp(&output[i], &wanted, sizeof wanted) != 0) return 61;
                }
                return 0;
            });
        }
    }

    TEST_CASE(
        "a rank that has left and ended is no loss to one of its host that waits for another") {
        const Daemon daemon({"--pool-capacity=1GiB"});
        ExchangeBoard board;
        Gate begun;
        Gate ended;
        std::vector<Child> children;
        for (int rank = 0; rank < 3; ++rank) {
            children.emplace_back([&, rank]() -> int {
                const HostsRank member(daemon.socket(), board, rank == 1 ? 1 : 0, rank, 3);
                if (member.group == nullptr) return 1;
                if (rank == 2) begun.open();
                if (rank == 1) {
                    if (!begun.wait() || !ended.wait()) return 2;
                    // While it waits for a message that no rank sends, rank 2 waits for its part.
                    std::int32_t none = 0;
                    fabricshm_call nothing = fabricshm_call_make(FABRICSHM_RECV, FABRICSHM_I32,
                                                                 FABRICSHM_SUM, nullptr, &none, 1);
                    nothing.peer = 2;
                    nothing.timeout_ms = 200;
                    if (fabricshm_run(member.group, &nothing) != FABRICSHM_ETIMEOUT) {
                        return failed(3);
                    }
                }
                const int code = scans(member, FABRICSHM_SCAN, 1'000, false);
                fabricshm_group_leave(member.group);
                return code;
            });
        }
        CHECK(children[0].wait() == 0);
        ended.open();
        CHECK(children[1].wait() == 0);
        CHECK(children[2].wait() == 0);
    }

    TEST_CASE("they can be started, and run in their order") {
        check_all({0, 1, 1}, [](const HostsRank& member) -> int {
            const Ints input = input_of(member.rank, 30'000);
            Ints scanned_up(30'000);
            Ints exchanged(30'000);
            const fabricshm_call scan =
                fabricshm_call_make(FABRICSHM_SCAN, FABRICSHM_I32, FABRICSHM_SUM, input.data(),
                                    scanned_up.data(), input.size());
            const fabricshm_call exchange =
                fabricshm_call_make(FABRICSHM_ALL_TO_ALL, FABRICSHM_I32, FABRICSHM_SUM,
                                    input.data(), exchanged.data(), 10'000);
            fabricshm_request* requests[2];
            if (fabricshm_start(member.group, &scan, &requests[0]) != 0) return failed(70);
            if (fabricshm_start(member.group, &exchange, &requests[1]) != 0) return failed(71);
            for (fabricshm_request* request : requests) {
                if (fabricshm_wait(request) != 0) return failed(72);
            }
            std::int32_t wanted = 0;
            for (int rank = 0; rank <= member.rank; ++rank) wanted += value(rank, 9);
            if (scanned_up[9] != wanted) return 73;
            const auto part = static_cast<std::uint64_t>(member.rank) * 10'000;
            return exchanged[20'005] == value(2, part + 5) ? 0 : 74;
        });
    }
}

// Collectives of groups over several hosts, against a group of the same ranks in one pool.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/hosts.hpp"

using test_support::Daemon;
using test_support::ExchangeBoard;
using test_support::ExchangePlace;
using test_support::failed;
using test_support::hosts_spec;
using test_support::HostsRank;
using test_support::Job;
using test_support::run_children;
using test_support::world_of;

namespace {

using Counts = std::vector<int>;

// Numbers whose sums and products are exact in every type, the floats of 8 bits included.
void fill(std::vector<std::byte>& bytes, fabricshm_dtype dtype, int rank) {
    const std::size_t size = fabricshm_dtype_size(dtype);
    for (std::size_t i = 0; i < bytes.size() / size; ++i) {
        const int value = 1 + static_cast<int>((i * 7 + static_cast<std::size_t>(rank)) % 2);
        std::byte* at = &bytes[i * size];
        const auto put = [at](auto number) { std::memcpy(at, &number, sizeof number); };
        switch (dtype) {
            case FABRICSHM_F64:
                put(static_cast<double>(value));
                break;
            case FABRICSHM_F32:
                put(static_cast<float>(value));
                break;
            case FABRICSHM_F16:
                put(static_cast<std::uint16_t>(value == 1 ? 0x3c00 : 0x4000));
                break;
            case FABRICSHM_BF16:
                put(static_cast<std::uint16_t>(value == 1 ? 0x3f80 : 0x4000));
                break;
            case FABRICSHM_F8_E4M3:
                put(static_cast<std::uint8_t>(value == 1 ? 0x38 : 0x40));
                break;
            case FABRICSHM_F8_E5M2:
                put(static_cast<std::uint8_t>(value == 1 ? 0x3c : 0x40));
                break;
            case FABRICSHM_F64_INT:
                put(fabricshm_f64_int{double(value), rank});
                break;
            case FABRICSHM_F32_INT:
                put(fabricshm_f32_int{float(value), rank});
                break;
            case FABRICSHM_I32_INT:
                put(fabricshm_i32_int{value, rank});
                break;
            case FABRICSHM_I64_INT:
                put(fabricshm_i64_int{value, rank});
                break;
            case FABRICSHM_I64:
            case FABRICSHM_U64:
                put(static_cast<std::int64_t>(value));
                break;
            case FABRICSHM_I32:
            case FABRICSHM_U32:
                put(static_cast<std::int32_t>(value));
                break;
            default:
                put(static_cast<std::int8_t>(value));
                break;
        }
    }
}

// The same ranks twice: over several pools, and in one.
struct Pair {
    Pair(const std::string& socket, ExchangeBoard& board, const Counts& counts, int rank)
        : hosts(socket, board, counts, rank), one(socket, 160 << 20, "common") {
        if (hosts.group == nullptr || !one.ok) return;
        if (fabricshm_group_join(one.arena, "flat", rank, hosts.world, 30'000, &flat) != 0) {
            failed(101);
        }
    }
    HostsRank hosts;
    Job one;
    fabricshm_group* flat = nullptr;
};

// Runs `call` in both groups on equal inputs; whether the outputs are equal. -1: in place.
int differs(Pair& pair, fabricshm_call call, std::size_t in, std::size_t out, bool in_arena) {
    std::vector<std::byte> input(in + 64);
    std::vector<std::byte> wanted(out + 64, std::byte{0x55});
    input.resize(in);
    fill(input, call.dtype, pair.hosts.rank);
    call.input = input.data();
    call.output = wanted.data();
    if (fabricshm_run(pair.flat, &call) != 0) return failed(110);
    std::vector<std::byte> outside(out + 64, std::byte{0x55});
    std::byte* given = outside.data();
    if (in_arena) {
        given = static_cast<std::byte*>(fabricshm_alloc(pair.hosts.job.arena, out + 64));
        if (given == nullptr) return failed(111);
        std::memset(given, 0x55, out + 64);
    }
    call.output = given;
    if (fabricshm_run(pair.hosts.group, &call) != 0) return failed(112);
    const bool same = std::memcmp(given, wanted.data(), out + 64) == 0;
    if (in_arena) fabricshm_free(pair.hosts.job.arena, given);
    if (same) return 0;
    std::fprintf(stderr, "rank %d kind %d dtype %d op %d count %llu: other bytes\n",
                 pair.hosts.rank, call.kind, call.dtype, call.op,
                 static_cast<unsigned long long>(call.count));
    return 113;
}

int differs(Pair& pair, fabricshm_kind kind, fabricshm_dtype dtype, fabricshm_op op,
            std::size_t count, int root, bool in_arena) {
    fabricshm_call call = fabricshm_call_make(kind, dtype, op, nullptr, nullptr, count);
    call.root = root;
    const std::size_t bytes = count * fabricshm_dtype_size(dtype);
    const auto world = static_cast<std::size_t>(pair.hosts.world);
    const std::size_t in = kind == FABRICSHM_REDUCE_SCATTER ? bytes * world : bytes;
    std::size_t out = kind == FABRICSHM_ALL_GATHER ? bytes * world : bytes;
    if (kind == FABRICSHM_REDUCE && pair.hosts.rank != root) out = 0;
    return differs(pair, call, in, out, in_arena);
}

const Counts kLayouts[] = {{2, 2}, {1, 1}, {3, 1}, {1, 2, 1}};
constexpr fabricshm_op kOps[] = {FABRICSHM_SUM,   FABRICSHM_AVG,  FABRICSHM_MIN,  FABRICSHM_MAX,
                                 FABRICSHM_PROD,  FABRICSHM_BAND, FABRICSHM_BOR,  FABRICSHM_BXOR,
                                 FABRICSHM_LAND,  FABRICSHM_LOR,  FABRICSHM_LXOR, FABRICSHM_MINLOC,
                                 FABRICSHM_MAXLOC};

bool goes_with(fabricshm_dtype dtype, fabricshm_op op) {
    const bool located = dtype >= FABRICSHM_F64_INT && dtype <= FABRICSHM_I64_INT;
    const bool integer = dtype >= FABRICSHM_I8 && dtype <= FABRICSHM_U64;
    if (op >= FABRICSHM_MINLOC) return located;
    if (op >= FABRICSHM_BAND) return integer;
    return !located;
}

void check_all(const Counts& counts, const std::function<int(Pair&)>& body) {
    const Daemon daemon({"--pool-capacity=1GiB"});
    ExchangeBoard board;
    const int world = world_of(counts);
    const auto codes = run_children(world, [&](int rank) -> int {
        Pair pair(daemon.socket(), board, counts, rank);
        if (pair.flat == nullptr) return 1;
        const int code = body(pair);
        fabricshm_group_leave(pair.hosts.group);
        return code;
    });
    CHECK(codes == std::vector<int>(static_cast<std::size_t>(world), 0));
}

}  // namespace

TEST_SUITE("net.collectives") {
    TEST_CASE("allreduce of every type and operation gives what one pool gives") {
        check_all({2, 2}, [](Pair& pair) -> int {
            for (int dtype = 0; dtype <= FABRICSHM_F8_E5M2; ++dtype) {
                for (const fabricshm_op op : kOps) {
                    const auto type = static_cast<fabricshm_dtype>(dtype);
                    if (!goes_with(type, op)) continue;
                    for (const std::size_t count : {5, 9'000}) {
                        const int code =
                            differs(pair, FABRICSHM_ALLREDUCE, type, op, count, 0, true);
                        if (code != 0) return code;
                    }
                }
            }
            return 0;
        });
    }

    TEST_CASE("every collective gives what one pool gives, with hosts of any number of ranks") {
        for (const Counts& counts : kLayouts) {
            check_all(counts, [](Pair& pair) -> int {
                for (const fabricshm_kind kind :
                     {FABRICSHM_ALLREDUCE, FABRICSHM_REDUCE_SCATTER, FABRICSHM_ALL_GATHER,
                      FABRICSHM_BROADCAST, FABRICSHM_REDUCE, FABRICSHM_BARRIER}) {
                    for (const std::size_t count : {0, 1, 1000, 70'001}) {
                        for (const bool in_arena : {false, true}) {
                            const int root = static_cast<int>(count) % pair.hosts.world;
                            const int code =
                                differs(pair, kind, FABRICSHM_I32, FABRICSHM_SUM,
                                        kind == FABRICSHM_BARRIER ? 0 : count, root, in_arena);
                            if (code != 0) return code;
                        }
                    }
                }
                return 0;
            });
        }
    }

    TEST_CASE("parts of different sizes") {
        check_all({2, 1}, [](Pair& pair) -> int {
            const std::uint64_t counts[] = {70'000, 0, 311};
            for (const fabricshm_kind kind : {FABRICSHM_REDUCE_SCATTER, FABRICSHM_ALL_GATHER}) {
                fabricshm_call call =
                    fabricshm_call_make(kind, FABRICSHM_F32, FABRICSHM_SUM, nullptr, nullptr, 0);
                call.counts = counts;
                const std::size_t own = counts[pair.hosts.rank] * sizeof(float);
                const std::size_t all = (counts[0] + counts[1] + counts[2]) * sizeof(float);
                const bool gathers = kind == FABRICSHM_ALL_GATHER;
                const int code =
                    differs(pair, call, gathers ? own : all, gathers ? all : own, true);
                if (code != 0) return code;
            }
            return 0;
        });
    }

    TEST_CASE("sums of floats are the same bits on all ranks and in every run") {
        check_all({1, 2, 1}, [](Pair& pair) -> int {
            constexpr std::size_t kCount = 100'003;
            std::vector<float> input(kCount);
            for (std::size_t i = 0; i < kCount; ++i) {
                input[i] = 1.0f / static_cast<float>(3 + i % 977 +
                                                     static_cast<std::size_t>(pair.hosts.rank));
            }
            std::vector<float> first;
            for (int run = 0; run < 3; ++run) {
                std::vector<float> output(kCount);
                if (fabricshm_allreduce(pair.hosts.group, input.data(), output.data(), kCount,
                                        FABRICSHM_F32, FABRICSHM_SUM) != 0) {
                    return failed(120);
                }
                if (run == 0) first = output;
                if (output != first) return 121;
            }
            std::vector<float> roots = first;
            if (fabricshm_broadcast(pair.hosts.group, roots.data(), kCount, FABRICSHM_F32, 0) !=
                0) {
                return failed(122);
            }
            return std::memcmp(roots.data(), first.data(), kCount * sizeof(float)) == 0 ? 0 : 123;
        });
    }

    TEST_CASE("operations that were started run in their order") {
        check_all({2, 1}, [](Pair& pair) -> int {
            std::vector<std::vector<std::int64_t>> buffers(6, std::vector<std::int64_t>(9'000, 1));
            std::vector<fabricshm_request*> requests(buffers.size());
            for (std::size_t i = 0; i < buffers.size(); ++i) {
                const fabricshm_call call =
                    fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_I64, FABRICSHM_SUM,
                                        buffers[i].data(), buffers[i].data(), buffers[i].size());
                if (fabricshm_start(pair.hosts.group, &call, &requests[i]) != 0) return failed(130);
            }
            for (fabricshm_request* request : requests) {
                if (fabricshm_wait(request) != 0) return failed(131);
            }
            for (const auto& buffer : buffers) {
                if (buffer.front() != 3 || buffer.back() != 3) return 132;
            }
            return 0;
        });
    }

    TEST_CASE("ranks that call different operations learn so, on both hosts") {
        check_all({1, 1}, [](Pair& pair) -> int {
            std::vector<float> data(10'000);
            const std::size_t count = pair.hosts.rank == 0 ? 9'000 : 10'000;
            const int code = fabricshm_allreduce(pair.hosts.group, data.data(), data.data(), count,
                                                 FABRICSHM_F32, FABRICSHM_SUM);
            return code == FABRICSHM_EMISMATCH ? 0 : failed(140);
        });
    }

    // The odd rank has the root's place on its own host: the same steps there.
    TEST_CASE("a rank that means another root learns so, though its host's steps are the same") {
        check_all({2, 2}, [](Pair& pair) -> int {
            std::vector<float> data(9'000);
            fabricshm_group* group = pair.hosts.group;
            const bool odd = pair.hosts.rank == 3;
            const int code =
                fabricshm_broadcast(group, data.data(), data.size(), FABRICSHM_F32, odd ? 2 : 0);
            if (odd && code != FABRICSHM_EMISMATCH) return failed(141);
            if (code != 0 && code != FABRICSHM_EMISMATCH) return failed(142);
            const int next = fabricshm_allreduce(group, data.data(), data.data(), data.size(),
                                                 FABRICSHM_F32, FABRICSHM_SUM);
            const int wanted = code == 0 ? FABRICSHM_EMISMATCH : FABRICSHM_EBROKEN;
            return next == wanted ? 0 : failed(143);
        });
    }

    TEST_CASE("two hosts that mean each other to be the root learn so long before the deadline") {
        check_all({1, 1}, [](Pair& pair) -> int {
            std::vector<float> data(9'000);
            const int other = 1 - pair.hosts.rank;
            fabricshm_call send =
                fabricshm_call_make(FABRICSHM_REDUCE, FABRICSHM_F32, FABRICSHM_SUM, data.data(),
                                    data.data(), data.size());
            send.root = other;
            if (fabricshm_run(pair.hosts.group, &send) != 0) return failed(145);
            // Each has sent to the other, and now each waits for the other.
            fabricshm_call wait = send;
            wait.root = pair.hosts.rank;
            wait.timeout_ms = 600'000;  // longer than the test may take
            const int code = fabricshm_run(pair.hosts.group, &wait);
            return code == FABRICSHM_EMISMATCH ? 0 : failed(146);
        });
    }

    TEST_CASE("two hosts that each mean to be the root learn so long before the deadline") {
        check_all({1, 1}, [](Pair& pair) -> int {
            std::vector<float> data(9'000);
            fabricshm_call call =
                fabricshm_call_make(FABRICSHM_GATHER, FABRICSHM_F32, FABRICSHM_SUM, data.data(),
                                    data.data(), data.size() / 2);
            call.input = &data[pair.hosts.rank == 0 ? 0 : data.size() / 2];
            call.root = pair.hosts.rank;
            call.timeout_ms = 600'000;
            const int code = fabricshm_run(pair.hosts.group, &call);
            return code == FABRICSHM_EMISMATCH ? 0 : failed(147);
        });
    }

    TEST_CASE("an exchange that gives garbage for a rank: the text names that rank") {
        for (const int round : {0, 1}) {
            const Daemon daemon;
            ExchangeBoard board;
            const auto codes = run_children(3, [&](int rank) -> int {
                const Job job(daemon.socket(), 16 << 20, ("pool" + std::to_string(rank)).c_str());
                struct Garbled {
                    ExchangePlace place;
                    int round;
                } garbled{{&board, rank, 3}, round};
                fabricshm_hosts_spec spec = hosts_spec(garbled.place, "group");
                spec.context = &garbled;
                spec.exchange = [](void* context, const void* mine, std::size_t bytes, void* all) {
                    auto* at = static_cast<Garbled*>(context);
                    const bool now = at->place.round == at->round;
                    const int code = ExchangePlace::exchange(&at->place, mine, bytes, all);
                    if (now) std::memset(static_cast<std::byte*>(all) + 2 * bytes, 0xee, bytes);
                    return code;
                };
                fabricshm_group* group = nullptr;
                const int code = fabricshm_group_join_hosts(job.arena, &spec, &group);
                if (code != FABRICSHM_EINVAL) return failed(1);
                const std::string text = fabricshm_error_text();
                return text.find("rank 2") != std::string::npos ? 0 : failed(2);
            });
            CHECK(codes == std::vector<int>(3, 0));
        }
    }

    TEST_CASE("an exchange that mixes records is called that, and no rank is blamed") {
        const Daemon daemon;
        ExchangeBoard board;
        const auto codes = run_children(3, [&](int rank) -> int {
            const Job job(daemon.socket(), 16 << 20, ("pool" + std::to_string(rank)).c_str());
            ExchangePlace place{&board, rank, 3};
            fabricshm_hosts_spec spec = hosts_spec(place, "group");
            spec.context = &place;
            spec.exchange = [](void* context, const void* mine, std::size_t bytes, void* all) {
                const int code = ExchangePlace::exchange(context, mine, bytes, all);
                auto* records = static_cast<std::byte*>(all);
                std::rotate(records, records + bytes, records + 3 * bytes);
                return code;
            };
            fabricshm_group* group = nullptr;
            if (fabricshm_group_join_hosts(job.arena, &spec, &group) != FABRICSHM_EINVAL) {
                return failed(1);
            }
            const std::string text = fabricshm_error_text();
            return text.find("no rank is at fault") != std::string::npos ? 0 : failed(2);
        });
        CHECK(codes == std::vector<int>(3, 0));
    }

    TEST_CASE("a group in one pool needs no network, and has all operations") {
        const Daemon daemon;
        ExchangeBoard board;
        const auto codes = run_children(2, [&](int rank) -> int {
            const HostsRank member(daemon.socket(), board, {2}, rank, "");
            if (member.group == nullptr) return 1;
            if (fabricshm_group_hosts(member.group) != 1) return 2;
            std::int32_t value = 1;
            std::int32_t sum = 0;
            const fabricshm_call call =
                fabricshm_call_make(FABRICSHM_SCAN, FABRICSHM_I32, FABRICSHM_SUM, &value, &sum, 1);
            if (fabricshm_run(member.group, &call) != 0) return failed(3);
            return sum == rank + 1 ? 0 : 4;
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("without a trusted network all ranks are refused, and the text names the option") {
        const Daemon daemon;
        ExchangeBoard board;
        const auto codes = run_children(2, [&](int rank) -> int {
            ::unsetenv("FABRIC_NET_TRUSTED");
            const Job job(daemon.socket(), 16 << 20, rank == 0 ? "left" : "right");
            ExchangePlace place{&board, rank, 2};
            const fabricshm_hosts_spec spec = hosts_spec(place, "group", "");
            fabricshm_group* group = nullptr;
            const int code = fabricshm_group_join_hosts(job.arena, &spec, &group);
            if (code != FABRICSHM_EDENIED) return failed(1);
            const std::string text = fabricshm_error_text();
            return text.find("FABRIC_NET_TRUSTED") != std::string::npos ? 0 : failed(2);
        });
        CHECK(codes == std::vector<int>(2, 0));
    }
}

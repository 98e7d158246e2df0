// Groups through fabricd and the C ABI: joining, disagreeing, dying, shrinking.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"

using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;
using test_support::run_children;

namespace {

constexpr std::int64_t kTimeoutMs = 60'000;
constexpr std::uint64_t kArenaBytes = 96 << 20;  // a group of four takes 16 MiB for its slots

fabricshm_group* join(const Job& job, const char* name, int rank, int world) {
    fabricshm_group* group = nullptr;
    if (fabricshm_group_join(job.arena, name, rank, world, kTimeoutMs, &group) != 0) failed(100);
    return group;
}

// Sums rank + 1 over all members, in place; true when every element is the sum.
bool sums_to(const Job& job, fabricshm_group* group, float wanted) {
    constexpr std::uint64_t kCount = 10'000;
    auto* data = static_cast<float*>(fabricshm_alloc(job.arena, kCount * sizeof(float)));
    if (data == nullptr) return failed(101) == 0;
    std::fill_n(data, kCount, static_cast<float>(fabricshm_group_rank(group) + 1));
    if (fabricshm_allreduce(group, data, data, kCount, FABRICSHM_F32, FABRICSHM_SUM) != 0) {
        return failed(102) == 0;
    }
    const bool right = std::all_of(data, data + kCount, [&](float x) { return x == wanted; });
    fabricshm_free(job.arena, data);
    return right;
}

bool text_has(const char* part) {
    return std::string(fabricshm_error_text()).find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("multiproc.client.groups") {
    TEST_CASE("ranks that are given and ranks that the daemon assigns make a group") {
        const Daemon daemon;
        const auto codes = run_children(4, [&](int child) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            if (!job.ok) return 1;
            fabricshm_group* given = join(job, "given", child, 4);
            if (given == nullptr || fabricshm_group_rank(given) != child) return 2;
            if (!sums_to(job, given, 10)) return 3;
            fabricshm_group* any = join(job, "any", FABRICSHM_ANY_RANK, 4);
            if (any == nullptr || fabricshm_group_world(any) != 4) return 4;
            if (!sums_to(job, any, 10)) return 5;
            fabricshm_group_leave(given);
            // The other one goes with the session.
            return 0;
        });
        CHECK(codes == std::vector<int>(4, 0));
    }

    TEST_CASE("a group that does not fill up ends at the deadline, and the text names it") {
        const Daemon daemon;
        Child child([&]() -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = nullptr;
            if (!job.ok) return 1;
            const int code = fabricshm_group_join(job.arena, "lonely", 0, 3, 50, &group);
            if (code != FABRICSHM_ETIMEOUT || group != nullptr) return failed(2);
            if (!text_has("'lonely'") || !text_has("3")) return failed(3);
            if (!text_has("of 3 ranks these are not there: 1, 2")) return failed(5);
            // The place is free again.
            return join(job, "lonely", 0, 1) != nullptr ? 0 : 4;
        });
        CHECK(child.wait() == 0);
    }

    TEST_CASE("a taken rank is EEXIST and another world is EINVAL") {
        const Daemon daemon;
        const auto codes = run_children(2, [&](int child) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "pair", child, 2);
            if (!job.ok || group == nullptr) return 1;
            if (!sums_to(job, group, 3)) return 2;
            fabricshm_group* again = nullptr;
            if (child == 0) {
                const int code = fabricshm_group_join(job.arena, "pair", 1, 2, 1000, &again);
                if (code != FABRICSHM_EEXIST) return failed(3);
            }
            return fabricshm_barrier(group) == 0 ? 0 : failed(4);
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("a child of fork() can neither wait for its parent's requests nor end its group") {
        const Daemon daemon;
        const auto codes = run_children(2, [&](int rank) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "pair", rank, 2);
            if (!job.ok || group == nullptr) return 1;
            float in[2] = {1, 1}, out[2];
            auto call =
                fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_F32, FABRICSHM_SUM, in, out, 2);
            fabricshm_request* request = nullptr;
            if (fabricshm_start(group, &call, &request) != 0) return failed(2);
            Child child([&]() -> int {
                fabricshm_group* survivors = nullptr;
                const auto closed = [](int code) { return code == FABRICSHM_ECLOSED; };
                if (!closed(fabricshm_test(request))) return 1;
                if (!closed(fabricshm_wait(request))) return 2;
                if (!closed(fabricshm_on_complete(
                        request, [](void*, int) {}, nullptr)))
                    return 3;
                if (!closed(fabricshm_group_quiesce(group, 100))) return 4;
                if (!closed(fabricshm_group_shrink(group, 100, &survivors))) return 5;
                return text_has("'pair'") ? 0 : 6;
            });
            if (const int code = child.wait(); code != 0) return 10 + code;
            if (fabricshm_wait(request) != 0) return failed(3);
            return sums_to(job, group, 3) ? 0 : 4;
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("ranks whose memory is not of one kind do not make a group") {
        const Daemon daemon;
        const auto codes = run_children(2, [&](int rank) -> int {
            if (rank == 1) ::setenv("FABRIC_VISIBILITY", "clflush", 1);
            const Job job(daemon.socket(), kArenaBytes);
            if (!job.ok) return 1;
            fabricshm_group* group = nullptr;
            const int code = fabricshm_group_join(job.arena, "mixed", rank, 2, kTimeoutMs, &group);
            if (rank == 1) {
                if (code != FABRICSHM_EINVAL) return failed(2);
                return text_has("FABRIC_VISIBILITY") ? 0 : failed(3);
            }
            if (code != 0) return failed(4);
            if (fabricshm_barrier(group) != FABRICSHM_EPEER) return failed(5);
            return fabricshm_error_rank() == 1 ? 0 : failed(6);
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("ranks of coherent hosts and ranks of one host do not make a group") {
        const Daemon daemon;
        const auto codes = run_children(2, [&](int rank) -> int {
            if (rank == 1) ::setenv("FABRIC_VISIBILITY", "coherent-hosts", 1);
            const Job job(daemon.socket(), kArenaBytes);
            if (!job.ok) return 1;
            fabricshm_group* group = nullptr;
            const int code = fabricshm_group_join(job.arena, "mixed", rank, 2, kTimeoutMs, &group);
            if (rank == 0) return code != 0 || fabricshm_barrier(group) == FABRICSHM_EPEER ? 0 : 4;
            if (code != FABRICSHM_EINVAL) return failed(2);
            return text_has("coherent among hosts for this rank and coherent for rank 0")
                       ? 0
                       : failed(3);
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("ranks that compare their identities find two daemons, and one that was restarted") {
        const Daemon daemon;
        const Daemon other;
        const Job here(daemon.socket(), kArenaBytes);
        const Job again(daemon.socket(), kArenaBytes);
        const Job there(other.socket(), kArenaBytes);
        REQUIRE((here.ok && again.ok && there.ok));
        const auto differ = [](const Job& one, const Job& two) {
            char text[2048] = "";
            const int code = fabricshm_identity_difference(
                fabricshm_session_identity(one.session), "rank 3",
                fabricshm_session_identity(two.session), "rank 0", text, sizeof text);
            CHECK(code == (text[0] == 0 ? FABRICSHM_OK : FABRICSHM_EMISMATCH));
            return std::string(text);
        };
        CHECK(differ(here, again).empty());
        const std::string text = differ(here, there);
        CHECK(text.find("rank 3 to " + daemon.socket() + " (pid ") != std::string::npos);
        CHECK(text.find("rank 0 to " + other.socket() + " (pid ") != std::string::npos);
        char cut[8] = "";
        CHECK(fabricshm_identity_difference(fabricshm_session_identity(here.session), "a",
                                            fabricshm_session_identity(there.session), "b", cut,
                                            sizeof cut) == FABRICSHM_EMISMATCH);
        CHECK(std::strlen(cut) == sizeof cut - 1);
        CHECK(fabricshm_identity_difference("gold", "a", "", "b", cut, sizeof cut) ==
              FABRICSHM_EINVAL);
        CHECK(fabricshm_identity_difference(nullptr, "a", "", "b", cut, sizeof cut) ==
              FABRICSHM_EINVAL);
    }

    TEST_CASE("without shared caches sums are right at any address, too") {
        const Daemon daemon;
        const auto codes = run_children(3, [&](int rank) -> int {
            ::setenv("FABRIC_VISIBILITY", "clflush", 1);
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "uneven", rank, 3);
            if (!job.ok || group == nullptr) return 1;
            auto* block = static_cast<char*>(fabricshm_alloc(job.arena, 1 << 20));
            for (const std::size_t shift : {1, 2, 3, 5, 61, 63}) {
                for (const std::size_t count : {400, 1000, 30'001}) {
                    const std::vector<float> ones(count, static_cast<float>(rank + 1));
                    char* in = block + shift;
                    char* out = block + (1 << 19) + (rank == 0 ? shift : 0);
                    std::memcpy(in, ones.data(), count * sizeof(float));
                    if (fabricshm_allreduce(group, in, out, count, FABRICSHM_F32, FABRICSHM_SUM) !=
                        0) {
                        return failed(2);
                    }
                    std::vector<float> sums(count);
                    std::memcpy(sums.data(), out, count * sizeof(float));
                    if (sums != std::vector<float>(count, 6)) return 3;
                }
            }
            return 0;
        });
        CHECK(codes == std::vector<int>(3, 0));
    }

    TEST_CASE("kinds that reduce nothing ignore the operation, whatever its value") {
        const Daemon daemon;
        const auto codes = run_children(2, [&](int rank) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "pair", rank, 2);
            if (!job.ok || group == nullptr) return 1;
            std::vector<float> values(200, 1.0F);
            for (const auto kind :
                 {FABRICSHM_BARRIER, FABRICSHM_BROADCAST, FABRICSHM_ALL_GATHER, FABRICSHM_GATHER,
                  FABRICSHM_SCATTER, FABRICSHM_ALL_TO_ALL, FABRICSHM_ALLREDUCE, FABRICSHM_SCAN}) {
                auto call = fabricshm_call_make(kind, FABRICSHM_F32, FABRICSHM_SUM, values.data(),
                                                values.data() + 100, 10);
                // Another one on each rank; no value of the type in C++.
                const int none = -1 - rank;
                std::memcpy(&call.op, &none, sizeof call.op);
                const bool reduces = kind == FABRICSHM_ALLREDUCE || kind == FABRICSHM_SCAN;
                if (fabricshm_run(group, &call) != (reduces ? FABRICSHM_EINVAL : FABRICSHM_OK)) {
                    return failed(10 + static_cast<int>(kind));
                }
            }
            return fabricshm_barrier(group) == 0 ? 0 : failed(2);
        });
        CHECK(codes == std::vector<int>{0, 0});
    }

    TEST_CASE("a death that one rank heard of in a message is named to all when it shrinks") {
        const Daemon daemon;
        Gate ready;
        const auto codes = run_children(3, [&](int rank) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "trio", rank, 3);
            if (!job.ok || group == nullptr) return 1;
            if (fabricshm_barrier(group) != 0) return failed(2);
            if (rank == 0) {
                if (!ready.wait(2)) return 3;
                ::raise(SIGKILL);
            }
            ready.open();
            char byte = 0;
            auto call =
                fabricshm_call_make(FABRICSHM_RECV, FABRICSHM_U8, FABRICSHM_SUM, nullptr, &byte, 1);
            call.peer = rank == 2 ? 0 : 2;
            if (fabricshm_run(group, &call) != FABRICSHM_EPEER) return failed(4);
            if (fabricshm_error_rank() != 0) return failed(5);
            fabricshm_group* survivors = nullptr;
            if (fabricshm_group_shrink(group, kTimeoutMs, &survivors) != 0) return failed(6);
            return fabricshm_group_world(survivors) == 2 ? 0 : 7;
        });
        CHECK(codes == std::vector<int>{128 + SIGKILL, 0, 0});
    }

    TEST_CASE("ranks that call different operations learn it, and the group is broken then") {
        const Daemon daemon;
        Gate seen;
        const auto codes = run_children(2, [&](int child) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "quarrel", child, 2);
            if (!job.ok || group == nullptr) return 1;
            std::vector<float> data(256, 1.0F);
            const auto op = child == 0 ? FABRICSHM_SUM : FABRICSHM_MAX;
            const int code =
                fabricshm_allreduce(group, data.data(), data.data(), 256, FABRICSHM_F32, op);
            if (code != FABRICSHM_EMISMATCH) return failed(2);
            if (fabricshm_error_rank() != 1 - child) return failed(3);
            if (!text_has("allreduce in group 'quarrel'")) return failed(4);
            if (fabricshm_barrier(group) != FABRICSHM_EBROKEN) return failed(5);
            seen.open();
            return seen.wait(2) ? 0 : 6;
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("survivors of a killed rank learn which one it was, shrink, and go on") {
        const Daemon daemon;
        constexpr int kWorld = 4, kVictim = 2;
        Gate joined;
        std::vector<Child> children;
        for (int rank = 0; rank < kWorld; ++rank) {
            children.emplace_back([&, rank]() -> int {
                const Job job(daemon.socket(), kArenaBytes);
                fabricshm_group* group = join(job, "world", rank, kWorld);
                if (!job.ok || group == nullptr) return 1;
                if (!sums_to(job, group, 10)) return 2;
                joined.open();
                if (rank == kVictim) {
                    Gate forever;
                    forever.wait();
                    return 3;
                }
                int code = FABRICSHM_OK;
                while (code == FABRICSHM_OK) code = fabricshm_barrier(group);
                if (code != FABRICSHM_EPEER || fabricshm_error_rank() != kVictim) return failed(4);
                fabricshm_group* survivors = nullptr;
                if (fabricshm_group_shrink(group, kTimeoutMs, &survivors) != 0) return failed(5);
                fabricshm_group_leave(group);
                if (fabricshm_group_world(survivors) != kWorld - 1) return 6;
                const int wanted = rank < kVictim ? rank : rank - 1;
                if (fabricshm_group_rank(survivors) != wanted) return 7;
                return sums_to(job, survivors, 6) ? 0 : 8;
            });
        }
        REQUIRE(joined.wait(kWorld));
        children[kVictim].kill();
        for (int rank = 0; rank < kWorld; ++rank) {
            if (rank != kVictim) CHECK(children[static_cast<std::size_t>(rank)].wait() == 0);
        }
    }

    TEST_CASE("a rank that aborts its group ends what it waits for itself, and its peers' waits") {
        const Daemon daemon;
        Gate begun;
        const auto codes = run_children(3, [&](int rank) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "trio", rank, 3);
            if (!job.ok || group == nullptr) return 1;
            float value = 1;
            auto sum = fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_F32, FABRICSHM_SUM,
                                           &value, &value, 1);
            auto message = fabricshm_call_make(FABRICSHM_RECV, FABRICSHM_F32, FABRICSHM_SUM,
                                               nullptr, &value, 1);
            message.peer = 2;
            fabricshm_request* requests[2] = {};
            if (rank == 1) {
                // What it waits for, neither of which comes: a sum and a message.
                if (fabricshm_start(group, &sum, &requests[0]) != 0) return failed(2);
                if (fabricshm_start(group, &message, &requests[1]) != 0) return failed(3);
                if (!begun.wait()) return 4;
                if (fabricshm_group_abort(group) != 0) return failed(5);
                // The sum's thread may not have begun with it by then: it is refused.
                const int summed = fabricshm_wait(requests[0]);
                if (summed != FABRICSHM_EPEER && summed != FABRICSHM_EBROKEN) return failed(6);
                if (summed == FABRICSHM_EPEER && fabricshm_error_rank() != 1) return failed(7);
                if (fabricshm_wait(requests[1]) != FABRICSHM_EPEER) return failed(10);
                if (fabricshm_error_rank() != 1) return failed(12);
                if (fabricshm_group_abort(group) != 0) return failed(8);  // again
            } else {
                message.peer = 1;
                if (rank == 0) begun.open();
                const int code = fabricshm_run(group, rank == 0 ? &sum : &message);
                if (code != FABRICSHM_EPEER || fabricshm_error_rank() != 1) return failed(9);
            }
            const int code = fabricshm_barrier(group);
            if (code != FABRICSHM_EPEER && code != FABRICSHM_EBROKEN) return failed(11);
            fabricshm_group_leave(group);
            return 0;
        });
        CHECK(codes == std::vector<int>(3, 0));
        CHECK(fabricshm_group_abort(nullptr) == FABRICSHM_EINVAL);
    }

    TEST_CASE("what needs no wait is refused after an abort, too") {
        const Daemon daemon;
        for (int world = 1; world <= 2; ++world) {
            CAPTURE(world);
            const auto codes = run_children(world, [&](int rank) -> int {
                const Job job(daemon.socket(), kArenaBytes);
                fabricshm_group* group = join(job, "aborted", rank, world);
                if (!job.ok || group == nullptr) return 1;
                float value = 1, sum = 0;
                const auto add = [&] {
                    return fabricshm_allreduce(group, &value, &sum, 1, FABRICSHM_F32,
                                               FABRICSHM_SUM);
                };
                // The second one is kept for others like it.
                for (int i = 0; i < 2; ++i) {
                    if (add() != 0) return failed(2);
                }
                const int last = world - 1;
                if (rank == last && fabricshm_group_abort(group) != 0) return failed(3);
                const int code = add();
                if (rank != last) {
                    if (code != FABRICSHM_EPEER || fabricshm_error_rank() != last) return failed(4);
                } else {
                    auto message = fabricshm_call_make(FABRICSHM_SEND, FABRICSHM_F32, FABRICSHM_SUM,
                                                       &value, nullptr, 1);
                    message.peer = 0;
                    if (code != FABRICSHM_EBROKEN) return failed(5);
                    if (fabricshm_barrier(group) != FABRICSHM_EBROKEN) return failed(6);
                    if (world > 1 && fabricshm_run(group, &message) != FABRICSHM_EBROKEN) {
                        return failed(7);
                    }
                }
                fabricshm_group_leave(group);
                return 0;
            });
            CHECK(codes == std::vector<int>(static_cast<std::size_t>(world), 0));
        }
    }

    TEST_CASE("started operations complete, call back and keep their order") {
        const Daemon daemon;
        const auto codes = run_children(3, [&](int child) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "async", child, 3);
            if (!job.ok || group == nullptr) return 1;
            std::vector<std::vector<float>> data(8, std::vector<float>(5000, 1.0F));
            std::vector<fabricshm_request*> requests;
            std::atomic<int> called{0};
            for (auto& buffer : data) {
                fabricshm_call call{};
                call.struct_size = sizeof call;
                call.kind = FABRICSHM_ALLREDUCE;
                call.dtype = FABRICSHM_F32;
                call.input = buffer.data();
                call.output = buffer.data();
                call.count = buffer.size();
                call.timeout_ms = kTimeoutMs;
                fabricshm_request* request = nullptr;
                if (fabricshm_start(group, &call, &request) != 0) return failed(2);
                const auto done = [](void* context, int result) {
                    if (result == 0) static_cast<std::atomic<int>*>(context)->fetch_add(1);
                };
                if (fabricshm_on_complete(request, done, &called) != 0) return failed(3);
                requests.push_back(request);
            }
            for (auto* request : requests) {
                int state = 0;
                while (state == 0) state = fabricshm_test(request);
                if (state != 1 || fabricshm_wait(request) != 0) return failed(4);
            }
            for (const auto& buffer : data) {
                if (buffer.front() != 3 || buffer.back() != 3) return 5;
            }
            while (called.load() < 8) std::this_thread::yield();
            return called.load() == 8 ? 0 : 6;
        });
        CHECK(codes == std::vector<int>(3, 0));
    }

    TEST_CASE("bit operations on floats are EUNSUPPORTED and leave the group as it was") {
        const Daemon daemon;
        Child child([&]() -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "single", 0, 1);
            if (!job.ok || group == nullptr) return 1;
            float x = 1;
            if (fabricshm_allreduce(group, &x, &x, 1, FABRICSHM_F32, FABRICSHM_BXOR) !=
                FABRICSHM_EUNSUPPORTED) {
                return failed(2);
            }
            return fabricshm_allreduce(group, &x, &x, 1, FABRICSHM_F32, FABRICSHM_SUM) == 0 ? 0 : 3;
        });
        CHECK(child.wait() == 0);
    }
}

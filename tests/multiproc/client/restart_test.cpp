// fabricd is killed and started again under processes that go on working.

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"

using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;

namespace {

constexpr std::int64_t kTimeoutMs = 60'000;
const std::int64_t kShape[] = {100};

}  // namespace

TEST_SUITE("multiproc.client.restart") {
    TEST_CASE("regions, tensors and memory of before the restart are there after it") {
        Daemon daemon;
        Gate ready, restarted;
        Child child([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_region before, found, after;
            fabricshm_tensor tensor, again;
            if (!job.ok || fabricshm_region_create(job.arena, 100'000, &before) != 0)
                return failed(1);
            if (fabricshm_tensor_create(job.arena, "kept", FABRICSHM_F32, 1, kShape, &tensor) !=
                0) {
                return failed(2);
            }
            std::memset(before.base, 0x77, before.bytes);
            if (fabricshm_tensor_publish(job.arena, &tensor, nullptr) != 0) return failed(3);
            ready.open();
            if (!restarted.wait()) return 4;

            if (fabricshm_region_open(job.arena, before.id, &found) != 0) return failed(5);
            if (found.base != before.base || found.generation != before.generation) return 6;
            const auto* bytes = static_cast<const unsigned char*>(before.base);
            if (!std::all_of(bytes, bytes + before.bytes, [](auto b) { return b == 0x77; }))
                return 7;
            if (fabricshm_tensor_open(job.arena, "kept", 0, &again) != 0) return failed(8);
            std::uint64_t version = 0;
            if (fabricshm_tensor_wait(job.arena, &again, 1, 0, &version) != 0) return failed(9);
            if (again.data != tensor.data || version != 1) return 10;
            // The records are whole: nothing new lands on what was there.
            if (fabricshm_region_create(job.arena, 100'000, &after) != 0) return failed(11);
            const bool apart = after.offset >= before.offset + before.bytes ||
                               before.offset >= after.offset + after.bytes;
            if (!apart) return 12;
            if (fabricshm_region_free(job.arena, before.id) != 0) return failed(13);
            return fabricshm_alloc(job.arena, 1000) != nullptr ? 0 : failed(14);
        });
        REQUIRE(ready.wait());
        daemon.kill();
        daemon.start();
        restarted.open();
        CHECK(child.wait() == 0);
    }

    TEST_CASE("collectives run on while the daemon is dead, and new groups form after it") {
        Daemon daemon;
        constexpr int kWorld = 3;
        Gate joined, dead, reduced, alive;
        std::vector<Child> children;
        for (int rank = 0; rank < kWorld; ++rank) {
            children.emplace_back([&, rank]() -> int {
                const Job job(daemon.socket(), 96 << 20);  // room for two groups
                fabricshm_group *group = nullptr, *second = nullptr;
                if (!job.ok ||
                    fabricshm_group_join(job.arena, "one", rank, kWorld, kTimeoutMs, &group) != 0) {
                    return failed(1);
                }
                auto* data = static_cast<float*>(fabricshm_alloc(job.arena, 40'000));
                if (data == nullptr) return failed(2);
                joined.open();
                if (!dead.wait()) return 3;
                for (int i = 0; i < 200; ++i) {
                    std::fill_n(data, 10'000, 1.0F);
                    if (fabricshm_allreduce(group, data, data, 10'000, FABRICSHM_F32,
                                            FABRICSHM_SUM) != 0) {
                        return failed(4);
                    }
                    if (data[0] != kWorld || data[9'999] != kWorld) return 5;
                }
                reduced.open();
                if (!alive.wait()) return 6;
                if (fabricshm_group_join(job.arena, "two", rank, kWorld, kTimeoutMs, &second) !=
                    0) {
                    return failed(7);
                }
                return fabricshm_barrier(second) == 0 && fabricshm_barrier(group) == 0 ? 0
                                                                                       : failed(8);
            });
        }
        REQUIRE(joined.wait(kWorld));
        daemon.kill();
        dead.open();
        REQUIRE(reduced.wait(kWorld));
        daemon.start();
        alive.open();
        for (Child& child : children) CHECK(child.wait() == 0);
    }

    TEST_CASE("a group that was left before a daemon could read it ends after its restart") {
        Daemon daemon;
        constexpr int kWorld = 3;
        Gate joined, stopped, left, alive;
        std::vector<Child> children;
        for (int rank = 0; rank < kWorld; ++rank) {
            children.emplace_back([&, rank]() -> int {
                const Job job(daemon.socket(), 96 << 20);
                fabricshm_group* group = nullptr;
                const auto join = [&] {
                    return fabricshm_group_join(job.arena, "one", rank, kWorld, kTimeoutMs, &group);
                };
                if (!job.ok || join() != 0) return failed(1);
                joined.open();
                if (!stopped.wait()) return 2;
                fabricshm_group_leave(group);
                left.open();
                if (!alive.wait()) return 3;
                // Of another number than before, and whole.
                if (join() != 0) return failed(4);
                return fabricshm_barrier(group) == 0 ? 0 : failed(5);
            });
        }
        REQUIRE(joined.wait(kWorld));
        // What they send lies in its sockets, and goes with it.
        REQUIRE(::kill(daemon.pid(), SIGSTOP) == 0);
        stopped.open();
        REQUIRE(left.wait(kWorld));
        daemon.kill();
        daemon.start();
        alive.open();
        for (Child& child : children) CHECK(child.wait() == 0);
    }

    TEST_CASE("calls made while the daemon is away wait for it, or end at their deadline") {
        Daemon daemon;
        Gate ready, dead, waited;
        Child child([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_tensor tensor;
            fabricshm_region region;
            if (!job.ok) return 1;
            ready.open();
            if (!dead.wait()) return 2;
            const int code = fabricshm_tensor_open(job.arena, "none", 50, &tensor);
            if (code != FABRICSHM_EDAEMON) return failed(3);
            if (std::string(fabricshm_error_text()).find("'none'") == std::string::npos) return 4;
            waited.open();
            return fabricshm_region_create(job.arena, 4096, &region) == 0 ? 0 : failed(5);
        });
        REQUIRE(ready.wait());
        daemon.kill();
        dead.open();
        REQUIRE(waited.wait());
        daemon.start();
        CHECK(child.wait() == 0);
    }

    TEST_CASE("a session that is opened while the daemon restarts waits for it, for some seconds") {
        Daemon daemon;
        Gate dead, tried;
        Child child([&]() -> int {
            if (!dead.wait()) return 1;
            fabricshm_session_options options{};
            options.struct_size = sizeof options;
            options.socket = daemon.socket().c_str();
            options.timeout_ms = 50;
            fabricshm_session* session = nullptr;
            if (fabricshm_session_open(&options, &session) != FABRICSHM_EDAEMON) return failed(2);
            tried.open();
            options.timeout_ms = kTimeoutMs;
            // The daemon is started as soon as the gate opens; on a busy machine more than once.
            int code = FABRICSHM_EDAEMON;
            for (int i = 0; i < 5 && code == FABRICSHM_EDAEMON; ++i) {
                code = fabricshm_session_open(&options, &session);
            }
            if (code != 0) return failed(3);
            fabricshm_session_close(session);
            return 0;
        });
        daemon.kill();
        dead.open();
        REQUIRE(tried.wait());
        daemon.start();
        CHECK(child.wait() == 0);
    }

    TEST_CASE("a process that died while the daemon was dead is cleaned up after") {
        Daemon daemon;
        Gate ready, restarted;
        Child victim([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_region region;
            if (!job.ok || fabricshm_region_create(job.arena, 12 << 20, &region) != 0) {
                return failed(1);
            }
            ready.open();
            Gate forever;
            return forever.wait() ? 0 : 2;
        });
        Child survivor([&]() -> int {
            const Job job(daemon.socket());
            if (!job.ok) return 1;
            ready.open();
            if (!restarted.wait()) return 2;
            fabricshm_region region;
            for (int i = 0; i < 2'000'000; ++i) {
                if (fabricshm_region_create(job.arena, 12 << 20, &region) == 0) return 0;
            }
            return failed(3);
        });
        REQUIRE(ready.wait(2));
        daemon.kill();
        victim.kill();
        daemon.start();
        restarted.open();
        CHECK(survivor.wait() == 0);
    }

    TEST_CASE("the daemon may die many times") {
        Daemon daemon;
        Gate ready, step, done;
        constexpr int kTimes = 5;
        Child child([&]() -> int {
            const Job job(daemon.socket());
            if (!job.ok) return 1;
            ready.open();
            for (int i = 1; i <= kTimes; ++i) {
                if (!step.wait(i)) return 2;
                fabricshm_region region;
                if (fabricshm_region_create(job.arena, 4096, &region) != 0) return failed(3);
                done.open();
            }
            return 0;
        });
        REQUIRE(ready.wait());
        for (int i = 1; i <= kTimes; ++i) {
            daemon.kill();
            daemon.start();
            step.open();
            REQUIRE(done.wait(i));
        }
        CHECK(child.wait() == 0);
    }
}

// Arenas and regions shared by processes, through fabricd.

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstring>
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

namespace {

// A word or two that all children made afterwards share.
template <typename T>
T* shared_memory() {
    return static_cast<T*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

}  // namespace

TEST_SUITE("multiproc.client.arenas") {
    TEST_CASE("what one process writes into a region another reads by its id") {
        const Daemon daemon;
        auto* id = shared_memory<std::uint64_t>();
        Gate written, read;
        Child writer([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_region region;
            if (!job.ok || fabricshm_region_create(job.arena, 1 << 20, &region) != 0) {
                return failed(1);
            }
            std::memset(region.base, 0x5a, region.bytes);
            *id = region.id;
            written.open();
            return read.wait() ? 0 : 2;
        });
        Child reader([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_region region;
            if (!job.ok || !written.wait()) return failed(1);
            if (fabricshm_region_open(job.arena, *id, &region) != 0) return failed(2);
            const auto* bytes = static_cast<const unsigned char*>(region.base);
            for (std::uint64_t i = 0; i < 1 << 20; ++i) {
                if (bytes[i] != 0x5a) return 3;
            }
            // It is not this session's to free.
            if (fabricshm_region_free(job.arena, *id) != FABRICSHM_EDENIED) return failed(4);
            read.open();
            return 0;
        });
        CHECK(reader.wait() == 0);
        CHECK(writer.wait() == 0);
    }

    TEST_CASE("the regions of a killed process go with it") {
        const Daemon daemon;
        auto* id = shared_memory<std::uint64_t>();
        Gate made;
        Child owner([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_region region;
            // Most of the arena, so that no other session has room until it is back.
            if (!job.ok || fabricshm_region_create(job.arena, 12 << 20, &region) != 0) {
                return failed(1);
            }
            *id = region.id;
            made.open();
            Gate forever;
            return forever.wait() ? 0 : 2;
        });
        REQUIRE(made.wait());
        Child other([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_region region;
            if (!job.ok || fabricshm_region_open(job.arena, *id, &region) != 0) return failed(1);
            if (fabricshm_region_create(job.arena, 12 << 20, &region) != FABRICSHM_ENOMEM) {
                return failed(2);
            }
            const std::uint64_t generation = region.generation;
            ::kill(owner.pid(), SIGKILL);
            // The daemon sees the death in its own time: ask until it has. The id may be used again
            // then, but with a higher generation.
            for (int i = 0; i < 2'000'000; ++i) {
                if (fabricshm_region_create(job.arena, 12 << 20, &region) != 0) continue;
                const int code = fabricshm_region_open(job.arena, *id, &region);
                if (code == FABRICSHM_ENOENT) return 0;
                return code == FABRICSHM_OK && region.generation > generation ? 0 : failed(3);
            }
            return failed(4);
        });
        CHECK(other.wait() == 0);
    }

    TEST_CASE("an arena lives until the last session that opened it ends") {
        const Daemon daemon;
        Gate opened, first_gone, checked;
        Child first([&]() -> int {
            const Job job(daemon.socket());
            if (!job.ok) return 1;
            std::strcpy(static_cast<char*>(fabricshm_arena_base(job.arena)), "kept");
            opened.open();
            return checked.wait() ? 0 : 2;
        });
        Child second([&]() -> int {
            const Job job(daemon.socket());
            if (!job.ok || !opened.wait()) return failed(1);
            checked.open();
            if (!first_gone.wait()) return 2;
            return std::strcmp(static_cast<char*>(fabricshm_arena_base(job.arena)), "kept") == 0
                       ? 0
                       : 3;
        });
        CHECK(first.wait() == 0);
        first_gone.open();
        CHECK(second.wait() == 0);
        Child third([&]() -> int {
            const Job job(daemon.socket());
            if (!job.ok) return 1;
            return *static_cast<char*>(fabricshm_arena_base(job.arena)) == 0 ? 0 : 2;
        });
        CHECK(third.wait() == 0);
    }

    TEST_CASE("an exclusive open is refused while the arena is there, and sizes are the maker's") {
        const Daemon daemon;
        Child child([&]() -> int {
            const Job job(daemon.socket(), 8 << 20);
            fabricshm_arena* arena = nullptr;
            if (!job.ok) return 1;
            if (fabricshm_arena_open(job.session, "job", 0, FABRICSHM_ARENA_EXCLUSIVE, &arena) !=
                FABRICSHM_EEXIST) {
                return failed(2);
            }
            if (fabricshm_arena_open(job.session, "job", 1 << 20, 0, &arena) != 0) return failed(3);
            if (fabricshm_arena_bytes(arena) != 8 << 20) return 4;
            if (fabricshm_arena_open(job.session, "mine", 1 << 20, FABRICSHM_ARENA_EXCLUSIVE,
                                     &arena) != 0) {
                return failed(5);
            }
            if (fabricshm_arena_open(job.session, "huge", 1ull << 40, 0, &arena) !=
                FABRICSHM_ENOMEM) {
                return failed(6);
            }
            return 0;
        });
        CHECK(child.wait() == 0);
    }

    TEST_CASE("eight processes allocate in one arena without overlapping") {
        const Daemon daemon;
        Gate filled;
        const auto codes = test_support::run_children(8, [&](int rank) -> int {
            const Job job(daemon.socket(), 64 << 20);
            if (!job.ok) return 1;
            std::vector<unsigned char*> blocks;
            for (int i = 0; i < 50; ++i) {
                auto* block = static_cast<unsigned char*>(fabricshm_alloc(job.arena, 50'000));
                if (block == nullptr) return failed(2);
                std::memset(block, rank + 1, 50'000);
                blocks.push_back(block);
            }
            filled.open();
            if (!filled.wait(8)) return 3;
            for (auto* block : blocks) {
                for (int i = 0; i < 50'000; ++i) {
                    if (block[i] != rank + 1) return 4;
                }
                fabricshm_free(job.arena, block);
            }
            return 0;
        });
        CHECK(codes == std::vector<int>(8, 0));
    }

    TEST_CASE("of a session with many threads none is cut off while one opens and closes arenas") {
        const Daemon daemon;
        Child child([&]() -> int {
            const Job job(daemon.socket());
            if (!job.ok) return failed(1);
            constexpr int kThreads = 32;
            std::atomic<int> errors{0};
            std::vector<std::thread> threads;
            for (int t = 0; t < kThreads; ++t) {
                threads.emplace_back([&] {
                    for (int i = 0; i < 200; ++i) {
                        fabricshm_region region;
                        const bool made = fabricshm_region_create(job.arena, 4096, &region) == 0;
                        if (!made || fabricshm_region_free(job.arena, region.id) != 0) ++errors;
                    }
                });
            }
            for (int i = 0; i < 200; ++i) {
                fabricshm_arena* other = nullptr;
                if (fabricshm_arena_open(job.session, "other", 1 << 20, 0, &other) != 0) ++errors;
                if (other != nullptr) fabricshm_arena_close(other);
            }
            for (auto& thread : threads) thread.join();
            return errors == 0 ? 0 : failed(2);
        });
        CHECK(child.wait() == 0);
    }
}

#include "libfabricshm/os/futex.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <new>
#include <thread>

using namespace fabricshm;
using namespace std::chrono_literals;

TEST_SUITE("os.futex") {
    TEST_CASE("a word that already differs does not sleep") {
        std::atomic<std::uint32_t> word{1};
        CHECK(futex_wait(&word, 0, TimePoint::max()));
    }

    TEST_CASE("a passed deadline ends the sleep and says so") {
        std::atomic<std::uint32_t> word{0};
        CHECK_FALSE(futex_wait(&word, 0, Clock::now() + 2ms));
        CHECK_FALSE(futex_wait(&word, 0, Clock::now() - 1s));
    }

    TEST_CASE("a thread that changes the word wakes the sleeper") {
        std::atomic<std::uint32_t> word{0};
        std::thread waker([&] {
            word.store(1);
            futex_wake(&word, INT_MAX);
        });
        bool in_time = true;
        const auto deadline = Clock::now() + 20s;
        while (word.load() == 0 && in_time) in_time = futex_wait(&word, 0, deadline);
        waker.join();
        CHECK(in_time);
    }

    TEST_CASE("a process wakes another one through shared memory") {
        void* memory =
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(memory != MAP_FAILED);
        auto* word = new (memory) std::atomic<std::uint32_t>(0);
        const pid_t child = ::fork();
        if (child == 0) {
            word->store(1);
            futex_wake(word, INT_MAX);
            ::_exit(0);
        }
        bool in_time = true;
        const auto deadline = Clock::now() + 20s;
        while (word->load() == 0 && in_time) in_time = futex_wait(word, 0, deadline);
        CHECK(in_time);
        ::waitpid(child, nullptr, 0);
        ::munmap(memory, 4096);
    }
}

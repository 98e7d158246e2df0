#include "libfabricshm/os/process.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "libfabricshm/os/random.hpp"

using namespace fabricshm;

namespace {

// A child that does nothing until it is killed.
struct Child {
    Child() : pid(::fork()) {
        if (pid == 0) {
            for (;;) ::pause();
        }
    }
    ~Child() {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
    }
    pid_t pid;
};

bool wait_for_end(const Fd& pidfd) {
    pollfd entry{pidfd.get(), POLLIN, 0};
    return ::poll(&entry, 1, 20'000) == 1;
}

}  // namespace

TEST_SUITE("os.process") {
    TEST_CASE("a pidfd reports the end of a process before it is waited for") {
        const Child child;
        const auto pidfd = open_pidfd(child.pid).value();
        CHECK(pidfd_alive(pidfd));
        ::kill(child.pid, SIGKILL);
        CHECK(wait_for_end(pidfd));
        CHECK_FALSE(pidfd_alive(pidfd));
    }

    TEST_CASE("a killed process is dead by its identity, zombie or not") {
        ProcessIdentity identity;
        {
            const Child child;
            identity = {child.pid, process_start_time(child.pid).value(),
                        own_pid_namespace().value()};
            CHECK(liveness_of(identity) == Liveness::kAlive);
            const auto pidfd = open_pidfd(child.pid).value();
            ::kill(child.pid, SIGKILL);
            REQUIRE(wait_for_end(pidfd));
            CHECK(liveness_of(identity) == Liveness::kDead);
        }
        CHECK(liveness_of(identity) == Liveness::kDead);
        CHECK(open_pidfd(identity.pid).error().code == Errc::kNotFound);
    }

    TEST_CASE("another process under the same number is not the one we knew") {
        auto identity = own_identity().value();
        CHECK(liveness_of(identity) == Liveness::kAlive);
        identity.start_time += 1;
        CHECK(liveness_of(identity) == Liveness::kDead);
    }

    TEST_CASE("nothing is claimed about a process of another pid namespace") {
        auto identity = own_identity().value();
        identity.pid_namespace += 1;
        CHECK(liveness_of(identity) == Liveness::kUnknown);
    }

    TEST_CASE("the start time is found behind a name made of brackets and spaces") {
        const char* line =
            "7 (a) R 1 (b)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1024 1 2";
        CHECK(detail::start_time_in(line).value() == 98765);
        CHECK(detail::start_time_in("7 (x) Z 1 7").error().code == Errc::kNotFound);
        // The first thread has ended, another one runs on.
        CHECK(detail::start_time_in("7 (x) Z 1 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 2 0 98765 1")
                  .value() == 98765);
        CHECK(detail::start_time_in("7 (x) Z 1 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 98765 1")
                  .error()
                  .code == Errc::kNotFound);
        CHECK(detail::start_time_in("7 (x").error().code == Errc::kCorrupt);
        CHECK(detail::start_time_in("7 (x) S 1 2").error().code == Errc::kCorrupt);
        CHECK(detail::start_time_in("").error().code == Errc::kCorrupt);
    }

    TEST_CASE("random bytes differ from one call to the next") {
        std::array<std::byte, 16> first{}, second{};
        REQUIRE(fill_random(first).ok());
        REQUIRE(fill_random(second).ok());
        CHECK(first != second);
    }
}

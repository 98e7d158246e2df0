#include "fabricd/slurm/bounded_run.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;

namespace {

constexpr auto kLong = 60s;  // of what ends by itself, on any machine

std::string output_of(const char* script) {
    const auto ended = run_bounded({"/bin/sh", "-c", script}, kLong);
    REQUIRE(ended.ok());
    CHECK(ended->code == 0);
    return ended->output;
}

}  // namespace

TEST_SUITE("fabricd.slurm.bounded_run") {
    TEST_CASE("exit code and both outputs come back, and a signal as the shell says it") {
        const auto ended = run_bounded({"/bin/sh", "-c", "echo one; echo two >&2; exit 3"}, kLong);
        REQUIRE(ended.ok());
        CHECK(ended->code == 3);
        CHECK(ended->output == "one\ntwo\n");
        const auto killed = run_bounded({"/bin/sh", "-c", "kill -9 $$"}, kLong);
        REQUIRE(killed.ok());
        CHECK(killed->code == 128 + SIGKILL);
    }

    TEST_CASE("what hangs is killed with what it started, and the caller goes on") {
        const auto began = Clock::now();
        // The inner one would keep the pipe open for much longer than the outer one lives.
        const auto ended = run_bounded({"/bin/sh", "-c", "sleep 600 & wait"}, 200ms);
        REQUIRE_FALSE(ended.ok());
        CHECK(ended.error().code == Errc::kTimeout);
        CHECK(Clock::now() - began < 60s);
    }

    TEST_CASE("a program that leaves another one behind has ended, though its output is open") {
        const auto ended = run_bounded({"/bin/sh", "-c", "sleep 5 & echo said"}, kLong);
        REQUIRE(ended.ok());
        CHECK(ended->output == "said\n");
    }

    TEST_CASE("of a long output the beginning is kept, and the program is not held up") {
        const std::string output =
            output_of("i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done");
        CHECK(output.size() == 4096);
        CHECK(output.starts_with("0123456789\n"));
    }

    TEST_CASE("the program gets no environment, no input and no descriptors of this process") {
        ::setenv("LD_PRELOAD_OF_A_USER", "evil", 1);
        CHECK(output_of("env | grep -c OF_A_USER || true") == "0\n");
        CHECK(output_of("cat") == "");
        const int left_open = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
        REQUIRE(::fcntl(left_open, F_DUPFD, 100) >= 100);
        // Number 3 is the folder that ls reads.
        CHECK(output_of("exec ls /proc/self/fd") == "0\n1\n2\n3\n");
    }

    TEST_CASE("what is not there can't be run") {
        const auto ended = run_bounded({"/nonexistent/fabricctl"}, kLong);
        REQUIRE_FALSE(ended.ok());
        CHECK(ended.error().code == Errc::kNotFound);
    }
}

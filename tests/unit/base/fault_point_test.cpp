#include "libfabricshm/base/fault_point.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <vector>

#include "libfabricshm/base/units.hpp"

using namespace fabricshm;

namespace {

std::vector<long> g_fired;

// `poison` is the one action whose effect this process survives and can see.
struct Plan {
    explicit Plan(const char* text) {
        g_fired.clear();
        fault::g_poison = [](long argument) { g_fired.push_back(argument); };
        fault::arm(text);
    }
    ~Plan() {
        fault::arm(nullptr);
        fault::g_poison = nullptr;
    }
};

}  // namespace

TEST_SUITE("base.fault_point") {
    TEST_CASE("a point fires at its passage and at no other") {
        const Plan plan("a.b:poison:3:7");
        for (int i = 0; i < 5; ++i) {
            FAULT_POINT("a.b");
            FAULT_POINT("other");
            CHECK(g_fired.size() == (i >= 2 ? 1 : 0));
        }
        CHECK(g_fired == std::vector<long>{7});
    }

    TEST_CASE("several entries are armed at once") {
        const Plan plan("a:poison:1:1;b:poison:2:2;a:poison:2:3");
        FAULT_POINT("a");
        FAULT_POINT("b");
        FAULT_POINT("a");
        FAULT_POINT("b");
        CHECK(g_fired == std::vector<long>{1, 3, 2});
    }

    TEST_CASE("an entry for another process is not armed") {
        ::setenv("RANK", "1", 1);
        ::setenv("FABRIC_DEVICE", "gpu0", 1);
        ::setenv("FABRIC_HOST", "left", 1);
        const Plan plan(
            "rank=0@a:poison:1:1;rank=1@a:poison:1:2;device=gpu0@a:poison:1:3;"
            "device=gpu1@a:poison:1:4;host=left@a:poison:1:5;host=right@a:poison:1:6;"
            "daemon@a:poison:1:7;nonsense@a:poison:1:8");
        FAULT_POINT("a");
        CHECK(g_fired == std::vector<long>{2, 3, 5});
    }

    TEST_CASE("nothing is armed by an empty plan") {
        for (const char* text : {"", ";", ":kill", "rank=99@a:kill"}) {
            const Plan plan(text);
            CHECK_FALSE(fault::g_armed);
        }
    }

    TEST_CASE("a host dies as a whole: all processes of the group of the one that passes") {
        const pid_t host = ::fork();
        if (host == 0) {
            ::setpgid(0, 0);
            const pid_t other = ::fork();
            if (other == 0) {
                const Plan plan("a:host");
                FAULT_POINT("a");
                ::_exit(1);
            }
            ::waitpid(other, nullptr, 0);
            ::_exit(2);
        }
        int status = 0;
        REQUIRE(::waitpid(host, &status, 0) == host);
        CHECK(WIFSIGNALED(status));
        CHECK(WTERMSIG(status) == SIGKILL);
    }

    TEST_CASE("a slow point takes its time at every passage from the named one on") {
        const Plan plan("a:slow:2:2000");
        const auto begin = Clock::now();
        for (int i = 0; i < 4; ++i) FAULT_POINT("a");
        CHECK(Clock::now() - begin >= std::chrono::microseconds(6000));
    }
}

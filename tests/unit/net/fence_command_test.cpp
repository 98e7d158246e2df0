#include "fabricd/net/fence_command.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

const FenceKey kKey{"node-7", 42};

int run(FenceCommand& command) {
    if (!command.start(kKey).ok()) return -1;
    while (true) {
        if (const auto status = command.poll(BootClock::now())) return *status;
        std::this_thread::yield();
    }
}

int status_of(const std::string& text) {
    FenceCommand command(text, 1min);
    return run(command);
}

}  // namespace

TEST_SUITE("net.fence_command") {
    TEST_CASE("its status is the command's own, and 128 and more for a signal") {
        CHECK(status_of("true") == 0);
        CHECK(status_of("exit 3") == 3);
        CHECK(status_of("kill -9 $$") == 137);
        CHECK(status_of("/no/such/program") == 127);
    }

    TEST_CASE("it hears which incarnation of which host is meant") {
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.file("out");
        REQUIRE(status_of("echo $FABRIC_FENCE_HOST $FABRIC_FENCE_INCARNATION > " + path) == 0);
        std::ifstream file(path);
        CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == "node-7 42\n");
    }

    TEST_CASE("one that takes too long is ended, and counts as failed") {
        FenceCommand command("sleep 1000 & wait", 1min);
        REQUIRE(command.start(kKey).ok());
        CHECK_FALSE(command.poll(BootClock::now()));
        CHECK(command.poll(BootClock::now() + 2min) == 124);
        CHECK_FALSE(command.poll(BootClock::now() + 3min));
    }

    TEST_CASE("a second one waits for the first, and runs after it") {
        FenceCommand command("exit $FABRIC_FENCE_INCARNATION", 1min);
        REQUIRE(command.start(kKey).ok());
        CHECK(command.start(kKey).error().code == fabricshm::Errc::kBusy);
        while (!command.poll(BootClock::now())) std::this_thread::yield();
        CHECK(run(command) == 42);
    }

    TEST_CASE("a command that runs is ended with its object") {
        const auto before = BootClock::now();
        {
            FenceCommand command("sleep 1000", 1min);
            REQUIRE(command.start(kKey).ok());
        }
        CHECK(BootClock::now() - before < 1min);
    }
}

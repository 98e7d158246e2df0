#include "fabricd/net/fence_command.hpp"

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
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

    TEST_CASE("one that has become needless gets SIGTERM, then SIGKILL, and never counts as done") {
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.file("ready");
        for (const char* text : {"trap 'exit 0' TERM; ", "trap '' TERM; "}) {
            FenceCommand command(text + ("touch " + path) + "; while :; do sleep 0.01; done", 1min);
            REQUIRE(command.start(kKey).ok());
            while (::access(path.c_str(), F_OK) != 0) std::this_thread::yield();
            ::unlink(path.c_str());
            const BootTime now = BootClock::now();
            command.end(now);
            std::optional<int> status;
            while (!status) status = command.poll(BootClock::now());
            CHECK(status == 143);
            const bool waited = BootClock::now() >= now + FenceCommand::kEndGrace;
            CHECK(waited == (text[6] == '\''));
        }
    }

    TEST_CASE("its whole group ends when the daemon is killed") {
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.file("child");
        const pid_t daemon = ::fork();
        if (daemon == 0) {
            FenceCommand command(
                "sleep 1000 & echo $! > " + path + ".new; mv " + path + ".new " + path + "; wait",
                1min);
            if (!command.start(kKey).ok()) ::_exit(1);
            while (::access(path.c_str(), F_OK) != 0) std::this_thread::yield();
            ::kill(::getpid(), SIGKILL);
        }
        int status = 0;
        REQUIRE(::waitpid(daemon, &status, 0) == daemon);
        REQUIRE(WIFSIGNALED(status));
        pid_t child = 0;
        std::ifstream(path) >> child;
        REQUIRE(child > 1);
        const auto is_there = [child] {
            std::string text, state;
            std::ifstream file("/proc/" + std::to_string(child) + "/stat");
            return static_cast<bool>(file >> text >> text >> state) && state != "Z";
        };
        const auto end = BootClock::now() + 30s;
        while (is_there() && BootClock::now() < end) std::this_thread::yield();
        CHECK_FALSE(is_there());
    }

    TEST_CASE("what it writes never stops it, and is short and printable in the log") {
        CHECK(status_of("head -c 3000000 /dev/zero; printf 'a\\033[2Jb\\n' >&2") == 0);
        CHECK(log_lines("").empty());
        CHECK(log_lines("one\ntwo") == std::vector<std::string>{"one", "two"});
        CHECK(log_lines("a\x1b[2Jb\r\n\n\xc3\xa4") == std::vector<std::string>{"a?[2Jb?", "??"});
        const auto lines = log_lines(std::string(100, '\n') + std::string(100000, 'x'));
        REQUIRE(lines.size() == 2);
        CHECK(lines[0].size() == 200);
        std::string many;
        for (int i = 0; i < 1000; ++i) many += std::to_string(i) + "\n";
        CHECK(log_lines(many).size() == 16);
        CHECK(log_lines(many).back() == "(it wrote more)");
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

#include "fabricd/server/listener.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <vector>

#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::UnixSocket;
using test_support::TemporaryDirectory;

namespace {

Admission anybody() {
    return Admission::make({}, "").value();
}

unsigned mode_of(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 0777u : ~0u;
}

UnixSocket caller(const std::string& path) {
    return UnixSocket::connect(path, Clock::now() + std::chrono::seconds(10)).value();
}

int accepted(Listener& listener, int most) {
    int count = 0;
    listener.accept(most, [&](UnixSocket) { ++count; });
    return count;
}

}  // namespace

TEST_SUITE("server.listener") {
    TEST_CASE("the socket has the mode that was asked for, in a directory of the daemon's own") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("new/attach.sock");
        const auto listener = Listener::open({path, 0640}, anybody());
        REQUIRE(listener.ok());
        CHECK(mode_of(path) == 0640);
        CHECK(mode_of(directory.file("new")) == 0700);
    }

    TEST_CASE("the socket goes with its listener") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("attach.sock");
        { CHECK(Listener::open({path}, anybody()).ok()); }
        CHECK(mode_of(path) == ~0u);
    }

    TEST_CASE("a second daemon is told that one is alive, and takes nothing away") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("attach.sock");
        auto first = Listener::open({path}, anybody());
        REQUIRE(first.ok());
        const auto second = Listener::open({path}, anybody());
        REQUIRE_FALSE(second.ok());
        CHECK(second.error().code == Errc::kBusy);
        const UnixSocket client = caller(path);
        CHECK(accepted(first.value(), 8) == 1);
    }

    TEST_CASE("no more are accepted at a time than asked, and none are lost") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("attach.sock");
        auto listener = Listener::open({path}, anybody());
        REQUIRE(listener.ok());
        CHECK(accepted(*listener, 8) == 0);
        std::vector<UnixSocket> callers;
        for (int i = 0; i < 3; ++i) callers.push_back(caller(path));
        CHECK(accepted(*listener, 2) == 2);
        CHECK(accepted(*listener, 2) == 1);
    }

    TEST_CASE("a path without a directory is refused") {
        const auto listener = Listener::open({"attach.sock"}, anybody());
        REQUIRE_FALSE(listener.ok());
        CHECK(listener.error().code == Errc::kInvalid);
    }
}

#include "fabricd/server/listener.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <span>
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
    CHECK(listener.accept(
        most, [&](UnixSocket) { ++count; }, Clock::now()));
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

    TEST_CASE("a second daemon hears that one is alive, and takes nothing away") {
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

    TEST_CASE("without a descriptor for it a connection waits, and is there when there is one") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("attach.sock");
        auto listener = Listener::open({path}, anybody());
        REQUIRE(listener.ok());
        const UnixSocket client = caller(path);
        rlimit before{};
        REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
        const rlimit none{0, before.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
        int count = 0;
        const bool can_go_on = listener->accept(
            8, [&](UnixSocket) { ++count; }, Clock::now());
        ::setrlimit(RLIMIT_NOFILE, &before);
        CHECK_FALSE(can_go_on);
        CHECK(count == 0);
        CHECK(accepted(*listener, 8) == 1);
    }

    TEST_CASE("a connection begins without the right to send descriptors, where there is one") {
        const TemporaryDirectory directory;
        const std::string path = directory.file("attach.sock");
        auto listener = Listener::open({path}, anybody());
        REQUIRE(listener.ok());
        if (!UnixSocket::pair()->first.allow_descriptors(true)) return;  // before Linux 6.16
        const UnixSocket client = caller(path);
        const std::byte one{};
        const int number = 0;
        const auto send = [&] {
            return client.send(std::span(&one, 1), std::span(&number, 1), {}).error().code;
        };
        CHECK(send() == Errc::kDenied);
        CHECK(listener->accept(
            1,
            [&](UnixSocket socket) {
                CHECK(send() == Errc::kDenied);
                CHECK(socket.allow_descriptors(true));
                CHECK(send() == Errc::kOk);
            },
            Clock::now()));
    }

    TEST_CASE("a path without a directory is refused") {
        const auto listener = Listener::open({"attach.sock"}, anybody());
        REQUIRE_FALSE(listener.ok());
        CHECK(listener.error().code == Errc::kInvalid);
    }
}

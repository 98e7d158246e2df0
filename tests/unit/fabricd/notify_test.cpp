#include "fabricd/notify.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "libfabricshm/os/fd.hpp"

using namespace fabricd;
using namespace std::chrono_literals;

TEST_SUITE("fabricd.notify") {
    TEST_CASE("the state arrives at an abstract socket, and without one nothing happens") {
        ::unsetenv("NOTIFY_SOCKET");
        notify_systemd("READY=1");
        const std::string name = "@fabric-notify-test-" + std::to_string(::getpid());
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path + 1, name.c_str() + 1, name.size() - 1);
        const fabricshm::Fd server(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
        REQUIRE(::bind(server.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
        ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
        notify_systemd("READY=1\nSTATUS=here");
        ::unsetenv("NOTIFY_SOCKET");
        char text[64];
        const auto length = ::recv(server.get(), text, sizeof text, MSG_DONTWAIT);
        REQUIRE(length > 0);
        CHECK(std::string(text, static_cast<std::size_t>(length)) == "READY=1\nSTATUS=here");
    }

    TEST_CASE("the watchdog is for the process it names") {
        ::unsetenv("WATCHDOG_PID");
        ::unsetenv("WATCHDOG_USEC");
        CHECK_FALSE(watchdog_interval());
        ::setenv("WATCHDOG_USEC", "3000000", 1);
        CHECK(watchdog_interval() == fabricshm::Duration(3s));
        ::setenv("WATCHDOG_PID", "1", 1);
        CHECK_FALSE(watchdog_interval());
        ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
        CHECK(watchdog_interval());
    }
}

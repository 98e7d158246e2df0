#include "fabricd/service/notify.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "libfabricshm/os/fd.hpp"

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

/// systemd's end, under an abstract name; the environment names it.
class Systemd {
  public:
    Systemd() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        const std::string name = "@fabric-notify-test-" + std::to_string(::getpid());
        address_.sun_family = AF_UNIX;
        std::memcpy(address_.sun_path + 1, name.c_str() + 1, name.size() - 1);
        size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
        REQUIRE(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address_), size_) == 0);
        const timeval timeout{30, 0};
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    }
    ~Systemd() { ::unsetenv("NOTIFY_SOCKET"); }
    Systemd(const Systemd&) = delete;
    Systemd& operator=(const Systemd&) = delete;

    /// Messages that were not read yet, until there is no room for another one.
    void fill() const {
        const fabricshm::Fd sender(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        while (::sendto(sender.get(), "old", 3, MSG_DONTWAIT,
                        reinterpret_cast<const sockaddr*>(&address_), size_) == 3) {
        }
    }
    /// The next message; "" when there is none.
    std::string next(int flags = MSG_DONTWAIT) const {
        char text[64];
        const auto length = ::recv(socket_.get(), text, sizeof text, flags);
        return length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "";
    }
    /// The first that is not "old".
    std::string next_new(int flags = MSG_DONTWAIT) const {
        std::string text = next(flags);
        while (text == "old") text = next(flags);
        return text;
    }

  private:
    fabricshm::Fd socket_;
    sockaddr_un address_{};
    socklen_t size_ = 0;
};

}  // namespace

TEST_SUITE("fabricd.notify") {
    TEST_CASE("the state arrives at an abstract socket, and without one nothing happens") {
        ::unsetenv("NOTIFY_SOCKET");
        notify_systemd("READY=1");
        const Systemd systemd;
        notify_systemd("READY=1\nSTATUS=here");
        CHECK(systemd.next() == "READY=1\nSTATUS=here");
    }

    TEST_CASE("what finds no room is lost at once, or waits for it when it is asked to") {
        const Systemd systemd;
        systemd.fill();
        notify_systemd("WATCHDOG=1");
        CHECK(systemd.next_new() == "");
        systemd.fill();
        std::thread service([] { notify_systemd("READY=1", 60s); });
        CHECK(systemd.next_new(0) == "READY=1");
        service.join();
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

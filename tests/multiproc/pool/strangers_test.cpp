// Users that may open the socket and nothing else, and what they send to keep the daemon busy: it
// answers others all the same, within a bounded time, and ends when it is asked to.

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/proto/codec.hpp"
#include "tests/support/children.hpp"
#include "tests/support/fabricd_process.hpp"
#include "tests/support/lingering_socket.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/wire_client.hpp"

using namespace test_support;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Fd;
using fabricshm::UnixSocket;
namespace proto = fabricshm::proto;

namespace {

constexpr uid_t kUser = 65534;      // admitted
constexpr uid_t kStranger = 65533;  // not

bool serves(const std::string& socket) {
    auto client = WireClient::attach(socket, "probe");
    const std::string name = "probe-" + std::to_string(::geteuid());
    return client.ok() && client->open_arena(name.c_str(), 4096).ok();
}

// Sends what the daemon is to close, with a request that means nothing. False where the kernel
// keeps descriptors from the daemon, which is as good.
bool send_descriptor(const UnixSocket& socket, int descriptor) {
    const proto::Message request = proto::make_request(proto::Type::kArenaAdopt, 1);
    const auto until = Clock::now() + WireClient::kTimeout;
    return socket.send(proto::bytes_of(request), std::span(&descriptor, 1), until).ok();
}

// A connection whose unread packet has a socket that lingers: no option keeps that one from it.
Fd nested(LingeringSocket& lingering) {
    auto ends = UnixSocket::pair().value();
    [[maybe_unused]] const bool sent = send_descriptor(ends.first, lingering.get());
    lingering.reset();
    return ends.second.release();
}

/// The attacker lives, and with it the peers of its sockets, until the test ends.
int attack(Gate& done, const std::function<bool()>& body) {
    if (!body()) return 1;
    done.open();
    Gate for_ever;
    for_ever.wait();
    return 0;
}

/// The daemon does nothing meanwhile: an attacker that closes its own descriptor after the daemon
/// has closed its copy would be the one that waits.
class Stopped {
  public:
    explicit Stopped(pid_t pid) : pid_(pid) {
        ::kill(pid_, SIGSTOP);
        ::waitpid(pid_, nullptr, WUNTRACED);
    }
    ~Stopped() { ::kill(pid_, SIGCONT); }
    Stopped(const Stopped&) = delete;
    Stopped& operator=(const Stopped&) = delete;

  private:
    pid_t pid_;
};

bool become(uid_t uid) {
    return ::setresgid(uid, uid, uid) == 0 && ::setresuid(uid, uid, uid) == 0;
}

/// fabricd with a socket that all may open, and one ordinary user that is admitted.
struct OpenHouse {
    OpenHouse() { REQUIRE(::chmod(directory.path().c_str(), 0755) == 0); }
    TemporaryDirectory directory;
    std::string socket = FabricdProcess::socket_in(directory.path());
    FabricdProcess daemon{
        directory.path(),
        "",
        {"--server-socket-mode=0666", "--server-allow-uids=65534", "--limits-sessions=8"}};
};

}  // namespace

TEST_SUITE("multiproc.pool.strangers") {
    TEST_CASE("a stranger's descriptor that takes an hour to close holds up no session") {
        if (::geteuid() != 0) return;  // only root can be two users
        OpenHouse house;
        REQUIRE(serves(house.socket));
        Gate done;
        std::optional<Stopped> stopped(house.daemon.pid());
        Child stranger([&] {
            return attack(done, [&] {
                if (!become(kStranger)) return false;
                for (int i = 0; i < 4; ++i) {
                    // Their peers stay as long as this process.
                    auto* plain = new LingeringSocket;
                    auto* inner = new LingeringSocket;
                    auto client = WireClient::connect(house.socket);
                    if (!client.ok()) return false;
                    if (send_descriptor(client->socket(), plain->get())) plain->reset();
                    Fd outer = nested(*inner);
                    const bool arrived = send_descriptor(client->socket(), outer.get());
                    // Closed here it would hang here.
                    if (!arrived) [[maybe_unused]]
                        const int kept = outer.release();
                }
                return true;
            });
        });
        REQUIRE(done.wait());
        stopped.reset();
        CHECK(serves(house.socket));
        CHECK(house.daemon.stop() == 0);
    }

    TEST_CASE("what a session that came back presents may take an hour to close") {
        const TemporaryDirectory directory;
        const std::string socket = FabricdProcess::socket_in(directory.path());
        FabricdProcess daemon(directory.path());
        REQUIRE(serves(socket));
        Gate back, stopped, done;
        Child tenant([&] {
            return attack(done, [&] {
                auto first = WireClient::attach(socket, "tenant");
                if (!first.ok()) return false;
                first->socket().reset();
                auto again = WireClient::connect(socket);
                if (!again.ok() || !again->hello_again(*first).ok()) return false;
                back.open();
                if (!stopped.wait()) return false;
                for (int i = 0; i < 4; ++i) {
                    auto* inner = new LingeringSocket;
                    if (!send_descriptor(again->socket(), nested(*inner).get())) return false;
                }
                return true;
            });
        });
        REQUIRE(back.wait());
        {
            const Stopped idle(daemon.pid());
            stopped.open();
            REQUIRE(done.wait());
        }
        CHECK(serves(socket));
        CHECK(daemon.stop() == 0);
    }

    TEST_CASE("a stranger hears why before it has said anything, and holds no place") {
        if (::geteuid() != 0) return;
        OpenHouse house;
        REQUIRE(serves(house.socket));
        Gate done;
        Child stranger([&] {
            return attack(done, [&] {
                if (!become(kStranger)) return false;
                auto* held = new std::vector<WireClient>;
                for (int i = 0; i < 200; ++i) {
                    auto client = WireClient::connect(house.socket);
                    if (!client.ok()) return false;
                    held->push_back(std::move(*client));
                }
                const auto heard = held->back().receive();
                return heard.ok() && heard->header.status == static_cast<int>(Errc::kDenied);
            });
        });
        REQUIRE(done.wait());
        Child user([&] {
            if (!become(kUser)) return 1;
            return serves(house.socket) ? 0 : 2;
        });
        CHECK(user.wait() == 0);
        CHECK(serves(house.socket));
    }
}

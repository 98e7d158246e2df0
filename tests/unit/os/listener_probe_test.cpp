#include "libfabricshm/os/listener_probe.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>

#include <vector>

using fabricshm::Fd;
using fabricshm::ListenerProbe;
using Answer = ListenerProbe::Answer;

namespace {

/// A socket at a free port of the loopback interface.
struct Bound {
    Fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in address{};

    Bound() {
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
        socklen_t bytes = sizeof address;
        auto* at = reinterpret_cast<sockaddr*>(&address);
        REQUIRE(::bind(socket.get(), at, bytes) == 0);
        REQUIRE(::getsockname(socket.get(), at, &bytes) == 0);
    }
    Answer ask(ListenerProbe& probe) const {
        return probe.ask(reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    Answer answer(ListenerProbe& probe) const {
        Answer found = Answer::kNone;
        for (int turn = 0; turn < 1'000'000 && found == Answer::kNone; ++turn) found = ask(probe);
        return found;
    }
};

}  // namespace

TEST_SUITE("unit.os.listener_probe") {
    TEST_CASE("a socket that listens answers, until it is closed") {
        Bound peer;
        REQUIRE(::listen(peer.socket.get(), 8) == 0);
        ListenerProbe probe;
        for (int turn = 0; turn < 3; ++turn) CHECK(peer.answer(probe) == Answer::kListens);
        peer.socket.reset();
        for (int turn = 0; turn < 3; ++turn) CHECK(peer.answer(probe) == Answer::kRefused);
    }

    TEST_CASE("one that takes no more connections is not taken for one that is gone") {
        Bound peer;
        REQUIRE(::listen(peer.socket.get(), 0) == 0);
        std::vector<ListenerProbe> probes(8);
        Answer last = Answer::kListens;
        for (auto& probe : probes) {
            last = peer.ask(probe);
            CHECK(last != Answer::kRefused);
        }
        CHECK(last == Answer::kNone);
        for (auto& probe : probes) CHECK(peer.ask(probe) != Answer::kRefused);
    }

    TEST_CASE("an address of a kind that there is not says nothing") {
        sockaddr address{};
        address.sa_family = AF_MAX;
        ListenerProbe probe;
        CHECK(probe.ask(&address, sizeof address) == Answer::kNone);
    }
}

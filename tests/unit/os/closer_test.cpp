#include "libfabricshm/os/closer.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "libfabricshm/os/unix_socket.hpp"
#include "tests/support/lingering_socket.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using test_support::LingeringSocket;

namespace {

/// The write end of a pipe, and whether it is closed everywhere.
struct Watched {
    Watched() {
        int ends[2];
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        read_end = Fd(ends[0]);
        write_end = Fd(ends[1]);
    }
    bool closes() const { return wait_ready(read_end.get(), POLLHUP, Clock::now() + 30s, "").ok(); }
    Fd read_end, write_end;
};

// A file whose close() takes until `socket` is helped: a packet with it waits in a unix socket, so
// that it can't be asked not to wait.
Fd hanging(const LingeringSocket& socket) {
    auto ends = UnixSocket::pair().value();
    const std::byte one{};
    const int number = socket.get();
    REQUIRE(ends.first.send(std::span(&one, 1), std::span(&number, 1), {}).ok());
    return ends.second.release();
}

}  // namespace

TEST_SUITE("os.closer") {
    TEST_CASE("what it is given is closed") {
        Watched pipe;
        Closer closer;
        closer.close(1, std::move(pipe.write_end));
        closer.close(1, Fd{});
        CHECK(pipe.closes());
    }

    TEST_CASE("all that waits is closed before it goes") {
        Watched pipe;
        {
            Closer closer;
            for (int i = 0; i < 100; ++i) closer.close(1, pipe.write_end.duplicate().value());
            closer.close(1, std::move(pipe.write_end));
        }
        CHECK(pipe.closes());
    }

    TEST_CASE("a socket that wants to linger is not waited for") {
        LingeringSocket socket;
        Watched pipe;
        Closer closer;
        for (int i = 0; i < Closer::kThreadsPerOwner; ++i) closer.close(1, socket.duplicate());
        socket.reset();
        closer.close(1, std::move(pipe.write_end));
        CHECK(pipe.closes());
    }

    TEST_CASE("an owner whose files hang holds up its own alone, and is full at some point") {
        std::vector<LingeringSocket> sockets(Closer::kThreadsPerOwner);
        std::vector<Fd> files;
        for (auto& socket : sockets) {
            files.push_back(hanging(socket));
            socket.reset();
        }
        Watched own, other;
        const TimePoint begun = Clock::now();
        {
            Closer closer;
            for (Fd& file : files) closer.close(1, std::move(file));
            closer.close(1, std::move(own.write_end));
            closer.close(2, std::move(other.write_end));
            CHECK(other.closes());
            CHECK_FALSE(wait_ready(own.read_end.get(), POLLHUP, Clock::now() + 50ms, "").ok());
            CHECK_FALSE(closer.is_full(1));
            while (closer.waiting() < Closer::kWaitingPerOwner + Closer::kThreadsPerOwner) {
                closer.close(1, other.read_end.duplicate().value());
            }
            CHECK(closer.is_full(1));
            CHECK_FALSE(closer.is_full(2));
        }
        // Those that hang are left behind.
        CHECK(Clock::now() - begun < 20s);
        sockets.clear();
        CHECK(own.closes());
    }
}

#include "libfabricshm/os/unix_socket.hpp"

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

using namespace fabricshm;
using namespace std::chrono_literals;

namespace {

struct TempDir {
    TempDir() { path = ::mkdtemp(name.data()); }
    ~TempDir() {
        ::unlink((path + "/s").c_str());
        ::rmdir(path.c_str());
    }
    std::string name = "/tmp/fabric-socket-XXXXXX";
    std::string path;
};

TimePoint soon() {
    return Clock::now() + 20s;
}

int open_descriptors() {
    DIR* folder = ::opendir("/proc/self/fd");
    int count = 0;
    while (::readdir(folder) != nullptr) ++count;
    ::closedir(folder);
    return count;
}

Fd memory_file() {
    return Fd(::memfd_create("test", MFD_CLOEXEC));
}

std::span<const std::byte> as_packet(const char* text) {
    return std::as_bytes(std::span(text, std::strlen(text)));
}

bool same_file(int a, int b) {
    struct stat first {
    }, second{};
    return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_ino == second.st_ino;
}

}  // namespace

TEST_SUITE("os.unix_socket") {
    TEST_CASE("packets keep their borders and their descriptors") {
        auto [left, right] = UnixSocket::pair().value();
        const Fd file = memory_file();
        const int numbers[] = {file.get()};
        REQUIRE(left.send(as_packet("one"), {}, soon()).ok());
        REQUIRE(left.send(as_packet("second"), numbers, soon()).ok());

        std::array<std::byte, 64> buffer;
        std::array<Fd, 1> got;
        const auto first = right.receive(buffer, got, soon()).value();
        CHECK(first.bytes == 3);
        CHECK(first.descriptors == 0);
        const auto second = right.receive(buffer, got, soon()).value();
        CHECK(second.bytes == 6);
        REQUIRE(second.descriptors == 1);
        CHECK(same_file(got[0].get(), file.get()));
        CHECK((::fcntl(got[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
    }

    TEST_CASE("descriptors that were not asked for are closed and counted") {
        auto [left, right] = UnixSocket::pair().value();
        const Fd file = memory_file();
        const int numbers[] = {file.get(), file.get(), file.get()};
        const int before = open_descriptors();
        std::array<std::byte, 8> buffer;
        for (int i = 0; i < 200; ++i) {
            std::array<Fd, 1> got;
            REQUIRE(left.send(as_packet("x"), numbers, soon()).ok());
            const auto received = right.receive(buffer, got, soon()).value();
            CHECK(received.descriptors == 1);
            CHECK(received.surplus == 2);
        }
        CHECK(open_descriptors() == before);
    }

    TEST_CASE("a packet with more descriptors than any of ours is refused without a leak") {
        auto [left, right] = UnixSocket::pair().value();
        const Fd file = memory_file();
        std::vector<int> numbers(200, file.get());
        std::vector<char> control(CMSG_SPACE(numbers.size() * sizeof(int)));
        char byte = 'x';
        iovec content{&byte, 1};
        msghdr message{};
        message.msg_iov = &content;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(numbers.size() * sizeof(int));
        std::memcpy(CMSG_DATA(header), numbers.data(), numbers.size() * sizeof(int));

        const int before = open_descriptors();
        REQUIRE(::sendmsg(left.get(), &message, 0) == 1);
        std::array<std::byte, 8> buffer;
        CHECK(right.receive(buffer, {}, soon()).error().code == Errc::kCorrupt);
        CHECK(open_descriptors() == before);
    }

    TEST_CASE("all descriptors of a packet are handed over, also of one that is refused") {
        auto ends = UnixSocket::pair().value();
        const std::byte packet[8]{};
        std::vector<int> numbers(UnixSocket::kDescriptorsMax, STDIN_FILENO);
        CHECK_FALSE(ends.second.has_descriptors());
        REQUIRE(ends.first.send(packet, numbers, soon()).ok());
        CHECK(ends.second.has_descriptors());
        std::byte buffer[8];
        std::vector<Fd> taken;
        CHECK(ends.second.receive_all(buffer, taken, soon()).value() == sizeof packet);
        CHECK(taken.size() == numbers.size());
        CHECK_FALSE(ends.second.has_descriptors());
        REQUIRE(ends.first.send(packet, numbers, soon()).ok());
        CHECK(ends.second.receive_all(std::span(buffer, 4), taken, soon()).error().code ==
              Errc::kCorrupt);
        CHECK(taken.size() == 2 * numbers.size());
        REQUIRE(ends.first.send(std::span(packet, 0), numbers, soon()).ok());
        CHECK(ends.second.receive_all(buffer, taken, soon()).error().code == Errc::kClosed);
        CHECK(taken.size() == 3 * numbers.size());
    }

    TEST_CASE("a packet longer than the buffer is refused and the next one comes whole") {
        auto [left, right] = UnixSocket::pair().value();
        const Fd file = memory_file();
        const int numbers[] = {file.get()};
        const int before = open_descriptors();
        REQUIRE(left.send(as_packet("far too long"), numbers, soon()).ok());
        REQUIRE(left.send(as_packet("ok"), {}, soon()).ok());
        std::array<std::byte, 4> buffer;
        std::array<Fd, 1> got;
        CHECK(right.receive(buffer, got, soon()).error().code == Errc::kCorrupt);
        CHECK(open_descriptors() == before);
        CHECK(right.receive(buffer, got, soon()).value().bytes == 2);
    }

    TEST_CASE("nothing to receive and no room to send end at the deadline") {
        auto [left, right] = UnixSocket::pair().value();
        std::array<std::byte, 4096> buffer{};
        CHECK(right.receive(buffer, {}, Clock::now() + 5ms).error().code == Errc::kTimeout);
        CHECK(right.receive(buffer, {}, TimePoint{}).error().code == Errc::kTimeout);
        Result<void> sent;
        for (int i = 0; i < 100000 && sent.ok(); ++i) sent = left.send(buffer, {}, TimePoint{});
        CHECK(sent.error().code == Errc::kTimeout);
    }

    TEST_CASE("an end that is gone is kClosed on both ways, without a signal") {
        auto [left, right] = UnixSocket::pair().value();
        left.reset();
        std::array<std::byte, 8> buffer;
        CHECK(right.receive(buffer, {}, soon()).error().code == Errc::kClosed);
        CHECK(right.send(as_packet("x"), {}, soon()).error().code == Errc::kClosed);
    }

    TEST_CASE("what a peer sent is received also when it closed with packets unread") {
        auto ends = UnixSocket::pair().value();
        REQUIRE(ends.second.send(as_packet("unread"), {}, soon()).ok());
        REQUIRE(ends.first.send(as_packet("bye"), {}, soon()).ok());
        ends.first.reset();
        std::array<std::byte, 64> buffer;
        CHECK(ends.second.receive(buffer, {}, soon()).value().bytes == 3);
        CHECK(ends.second.receive(buffer, {}, soon()).error().code == Errc::kClosed);
    }

    TEST_CASE("shut_down wakes a thread that waits without a deadline") {
        auto [left, right] = UnixSocket::pair().value();
        Errc seen = Errc::kOk;
        std::thread waiter([&, &socket = right] {
            std::array<std::byte, 8> buffer;
            seen = socket.receive(buffer, {}, TimePoint::max()).error().code;
        });
        right.shut_down();
        waiter.join();
        CHECK(seen == Errc::kClosed);
    }

    TEST_CASE("a listener accepts, knows the peer that connected and keeps its permissions") {
        const TempDir folder;
        const std::string path = folder.path + "/s";
        auto listener = UnixSocket::listen(path, 0600, 8).value();
        struct stat status {};
        REQUIRE(::stat(path.c_str(), &status) == 0);
        CHECK((status.st_mode & 0777) == 0600);
        CHECK(listener.accept(Clock::now() + 1ms).error().code == Errc::kTimeout);

        const auto client = UnixSocket::connect(path, soon()).value();
        const auto server = listener.accept(soon()).value();
        const auto who = server.peer().value();
        CHECK(who.pid == ::getpid());
        CHECK(who.uid == ::getuid());
        CHECK(server.peer_pidfd().ok());
    }

    TEST_CASE("a live listener keeps its path and a dead one's is taken over") {
        const TempDir folder;
        const std::string path = folder.path + "/s";
        auto first = UnixSocket::listen(path, 0600, 8).value();
        CHECK(UnixSocket::listen(path, 0600, 8).error().code == Errc::kExists);
        first.reset();
        CHECK(UnixSocket::connect(path, soon()).error().code == Errc::kDaemon);
        CHECK(UnixSocket::listen(path, 0600, 8).ok());
    }

    TEST_CASE("a path at which there is a file is refused, and the file stays") {
        const TempDir folder;
        const std::string path = folder.path + "/precious";
        std::ofstream(path) << "words";
        const auto refused = UnixSocket::listen(path, 0600, 1);
        REQUIRE_FALSE(refused.ok());
        CHECK(refused.error().code == Errc::kExists);
        std::string words;
        std::ifstream(path) >> words;
        CHECK(words == "words");
        CHECK_FALSE(may_hold_socket(path));
        CHECK(may_hold_socket(folder.path + "/none"));
    }

    TEST_CASE("a path that is missing or too long says so") {
        CHECK(UnixSocket::connect("/nonexistent/s", soon()).error().code == Errc::kDaemon);
        const std::string path(200, 'x');
        CHECK(UnixSocket::connect(path, soon()).error().code == Errc::kInvalid);
        CHECK(UnixSocket::listen(path, 0600, 8).error().code == Errc::kInvalid);
        CHECK(UnixSocket::connect("", soon()).error().code == Errc::kInvalid);
    }

    TEST_CASE("a connect to a full queue ends at its deadline") {
        const TempDir folder;
        const std::string path = folder.path + "/s";
        const auto listener = UnixSocket::listen(path, 0600, 1).value();
        std::vector<UnixSocket> clients;
        Errc seen = Errc::kOk;
        for (int i = 0; i < 16 && seen == Errc::kOk; ++i) {
            auto client = UnixSocket::connect(path, Clock::now() + 5ms);
            if (client.ok())
                clients.push_back(std::move(client).value());
            else
                seen = client.error().code;
        }
        CHECK(seen == Errc::kBusy);
    }
}

// Children of a process with several threads: whatever a thread was in the middle of, they have
// nothing of what is on the list.

#include "libfabricshm/client/fork_guard.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libfabricshm/os/fork_lock.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/memory_file.hpp"
#include "libfabricshm/os/poison.hpp"

using fabricshm::Clock;
using fabricshm::Fd;
using fabricshm::MapOptions;
using fabricshm::Mapping;
using fabricshm::PoisonWatch;
using fabricshm::UnixSocket;
namespace fork_guard = fabricshm::fork_guard;

namespace {

constexpr auto kLong = std::chrono::seconds(30);

/// The exit code of a child that does `body`; -1 when it was killed, by its alarm for example.
int in_child(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        ::_exit(body());
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Fd new_file() {
    return fabricshm::open_memory_file("fork-guard", "test").value();
}

ino_t inode_of(int fd) {
    struct stat status {};
    return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

/// How many descriptors of it this process has.
int copies_of(ino_t inode) {
    int copies = 0;
    for (int fd = 0; fd < 256; ++fd) copies += inode_of(fd) == inode;
    return copies;
}

/// Two ends, and a packet on its way to the second, with so many descriptors of one file.
struct Packet {
    explicit Packet(int count) {
        const Fd file = new_file();
        inode = inode_of(file.get());
        const std::vector<int> numbers(static_cast<std::size_t>(count), file.get());
        const std::array<std::byte, 1> packet{};
        REQUIRE(ends.first.send(packet, numbers, Clock::now() + kLong).ok());
    }
    std::pair<UnixSocket, UnixSocket> ends = UnixSocket::pair().value();
    ino_t inode = 0;
};

void receive(fork_guard::Incoming& incoming, const UnixSocket& socket) {
    std::array<std::byte, 8> packet{};
    REQUIRE(incoming.receive(socket, packet, Clock::now() + kLong).ok());
}

/// Whether thread `id` of this process sleeps, as the kernel has it.
bool is_asleep(pid_t id) {
    std::ifstream file("/proc/self/task/" + std::to_string(id) + "/stat");
    std::string text;
    std::getline(file, text);
    const std::size_t name_end = text.rfind(") ");
    return name_end != std::string::npos && text[name_end + 2] == 'S';
}

Mapping map_hidden(const Fd& file) {
    if (::ftruncate(file.get(), 4096) != 0) return {};
    MapOptions options;
    options.is_inherited = false;
    return Mapping::map(file, 0, 4096, options).value();
}

}  // namespace

TEST_SUITE("client.fork_guard") {
    TEST_CASE("fork() waits for the step that another thread is in") {
        std::unique_lock step(fabricshm::fork_lock());
        std::atomic<pid_t> forker = 0;
        std::atomic<bool> has_forked = false;
        std::thread thread([&] {
            forker = ::gettid();
            in_child([] { return 0; });
            has_forked = true;
        });
        const auto until = Clock::now() + kLong;
        while (!has_forked && !(forker != 0 && is_asleep(forker)) && Clock::now() < until) {
            std::this_thread::yield();
        }
        CHECK(!has_forked);
        step.unlock();
        thread.join();
        CHECK(has_forked);
    }

    TEST_CASE("fork() does not wait for a packet that another thread waits for") {
        const auto ends = UnixSocket::pair().value();
        std::atomic<pid_t> waiter = 0;
        std::thread thread([&] {
            waiter = ::gettid();
            fork_guard::Incoming incoming;
            std::array<std::byte, 8> packet{};
            (void)incoming.receive(ends.second, packet, fabricshm::TimePoint::max());
        });
        while (waiter == 0 || !is_asleep(waiter)) std::this_thread::yield();
        CHECK(in_child([] { return 0; }) == 0);
        ends.second.shut_down();
        thread.join();
    }

    TEST_CASE("a child has no descriptor of a packet but those that it may have") {
        const Packet packet(4);
        fork_guard::Incoming incoming;
        receive(incoming, packet.ends.second);
        const Fd may_have = incoming.take(0);
        const auto kept = incoming.keep(1);
        const auto others = incoming.keep(2, 1);
        CHECK(incoming.has(3));
        CHECK(!incoming.has(0, 4));
        CHECK(in_child([&] { return copies_of(packet.inode); }) == 1);
        CHECK(copies_of(packet.inode) == 4);
    }

    TEST_CASE("what is not taken is closed, and its number another file's for children, too") {
        const Packet packet(3);
        {
            fork_guard::Incoming incoming;
            receive(incoming, packet.ends.second);
            const Fd taken = incoming.take(0);
            const auto kept = incoming.keep(1);
        }
        CHECK(copies_of(packet.inode) == 0);
        std::vector<Fd> mine;
        for (int i = 0; i < 8; ++i) mine.push_back(new_file());
        CHECK(in_child([&] {
                  int gone = 0;
                  for (const Fd& file : mine) gone += inode_of(file.get()) == 0;
                  return gone;
              }) == 0);
    }

    TEST_CASE("the last holder in a child leaves alone what has the number there") {
        const Packet packet(1);
        fork_guard::Incoming incoming;
        receive(incoming, packet.ends.second);
        auto kept = incoming.keep(0);
        CHECK(in_child([&] {
                  const int number = kept->get();
                  if (inode_of(number) != 0) return 1;
                  if (::dup2(STDERR_FILENO, number) != number) return 2;
                  kept.reset();
                  return inode_of(number) != 0 ? 0 : 3;
              }) == 0);
    }

    TEST_CASE("a child may watch a mapping of its own, whatever other threads were watching") {
        std::atomic<bool> is_over = false;
        std::thread thread([&] {
            const Fd file = new_file();
            while (!is_over) {
                const Mapping mapping = map_hidden(file);
                const fork_guard::Hole hole(mapping.data(), mapping.size());
                const PoisonWatch watch(mapping.data(), mapping.size(), {});
            }
        });
        int ended = 0;
        constexpr int kChildren = 50;
        for (int i = 0; i < kChildren; ++i) {
            ended += in_child([] {
                         const Fd file = new_file();
                         const Mapping mapping = map_hidden(file);
                         const PoisonWatch watch(mapping.data(), mapping.size(), {});
                         return 0;
                     }) == 0;
        }
        CHECK(ended == kChildren);
        is_over = true;
        thread.join();
    }
}

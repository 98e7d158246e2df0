// Children of fork() and arenas on a device, whose ranges are granted again. A regular file
// stands in for the device.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"
#include "tests/support/temporary_directory.hpp"

using test_support::Daemon;
using test_support::Job;
using test_support::TemporaryDirectory;

namespace {

constexpr int kForks = 400;
constexpr int kForksThatOpen = 20;  // one in so many opens a session of its own
constexpr int kForksOfSilent = 20;

std::string device_in(const TemporaryDirectory& directory) {
    std::ofstream(directory.file("device")).close();
    std::filesystem::resize_file(directory.file("device"), 64 << 20);
    return directory.file("device");
}

/// A child that waits until the test lets it go on.
class Forked {
  public:
    template <typename Main>
    explicit Forked(Main main) {
        if (::pipe(pipe_) != 0) return;
        pid_ = ::fork();
        if (pid_ != 0) return;
        ::close(pipe_[1]);
        char word = 0;
        if (::read(pipe_[0], &word, 1) != 1) ::_exit(99);
        // The parent sees the signal itself, not what doctest or a sanitizer makes of it.
        ::signal(SIGSEGV, SIG_DFL);
        ::_exit(main());
    }
    /// As waitpid() has it.
    int go_on() {
        int status = -1;
        CHECK(::write(pipe_[1], "x", 1) == 1);
        CHECK(::waitpid(pid_, &status, 0) == pid_);
        return status;
    }

  private:
    int pipe_[2] = {-1, -1};
    pid_t pid_ = -1;
};

bool ended_by(int status, int signal) {
    return WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

bool has_open(const std::string& path) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        if (std::filesystem::read_symlink(entry.path(), error) == path) return true;
    }
    return false;
}

bool has_mapped(const std::string& path) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find(path) != std::string::npos) return true;
    }
    return false;
}

bool is_connected_to(const std::string& socket, int fd) {
    sockaddr_un peer{};
    socklen_t length = sizeof peer;
    const bool has_peer = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
    return has_peer && peer.sun_family == AF_UNIX && socket == peer.sun_path;
}

bool has_connection(const std::string& socket) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        const std::string name = entry.path().filename();
        int fd = -1;
        std::from_chars(name.data(), name.data() + name.size(), fd);
        if (is_connected_to(socket, fd)) return true;
    }
    return false;
}

/// Threads that open and close while it lives: sessions with an arena, and arenas of one session.
class Openers {
  public:
    explicit Openers(const std::string& socket) {
        threads_.emplace_back([this, socket] {
            while (!ended_) {
                const Job job(socket, 1 << 20, "of-its-own-session");
                count(job.ok);
            }
        });
        threads_.emplace_back([this, socket] {
            const Job job(socket, 1 << 20, "first");
            while (!ended_) {
                fabricshm_arena* arena = nullptr;
                count(fabricshm_arena_open(job.session, "next", 1 << 20, 0, &arena) == 0);
                fabricshm_arena_close(arena);
            }
        });
    }
    ~Openers() {
        ended_ = true;
        for (std::thread& thread : threads_) thread.join();
    }
    Openers(const Openers&) = delete;
    Openers& operator=(const Openers&) = delete;

    bool wait_for_first() const {
        while (opened_ == 0 && failed_ == 0) std::this_thread::yield();
        return failed_ == 0;
    }
    int opened() const { return opened_; }
    int failed() const { return failed_; }

  private:
    void count(bool ok) { ++(ok ? opened_ : failed_); }
    std::atomic<bool> ended_ = false;
    std::atomic<int> opened_ = 0;
    std::atomic<int> failed_ = 0;
    std::vector<std::thread> threads_;
};

}  // namespace

TEST_SUITE("multiproc.client.forks") {
    TEST_CASE("a child can't write to a device's range that is granted again") {
        const TemporaryDirectory directory;
        const std::string device = device_in(directory);
        const Daemon daemon(
            {"--pool-backend=dax", "--pool-dax-device=" + device, "--pool-capacity=0"});
        auto before = std::make_unique<Job>(daemon.socket());
        REQUIRE(before->ok);
        auto* const words = static_cast<char*>(fabricshm_alloc(before->arena, 4096));
        REQUIRE(words != nullptr);
        std::memset(words, 1, 4096);
        Forked writer([=] {
            std::memset(words, 2, 4096);
            return 0;
        });
        // What it maps itself comes to lie elsewhere: an old pointer never hits it.
        Forked mapper([=] {
            for (int i = 0; i < 200; ++i) {
                void* own = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (own == MAP_FAILED) return 1;
            }
            return static_cast<int>(words[0]);
        });
        Forked holder([&] { return has_open(device) ? 1 : 0; });
        // The parent's word is no child's: these say so, and touch nothing.
        Forked caller([&] {
            if (fabricshm_alloc(before->arena, 4096) != nullptr) return 1;
            fabricshm_free(before->arena, words);
            fabricshm_arena_close(before->arena);
            fabricshm_session_close(before->session);
            return 0;
        });
        CHECK(has_open(device));
        before.reset();

        const Job after(daemon.socket());
        REQUIRE(after.ok);
        auto* const others = static_cast<char*>(fabricshm_alloc(after.arena, 4096));
        REQUIRE(others != nullptr);
        std::memset(others, 3, 4096);
        CHECK(ended_by(writer.go_on(), SIGSEGV));
        CHECK(ended_by(mapper.go_on(), SIGSEGV));
        CHECK(holder.go_on() == 0);
        CHECK(caller.go_on() == 0);
        for (int i = 0; i < 4096; ++i) REQUIRE(others[i] == 3);
    }

    TEST_CASE(
        "memory of the host's own is read by children; the parent's end takes the bytes only") {
        const Daemon daemon;
        auto job = std::make_unique<Job>(daemon.socket());
        REQUIRE(job->ok);
        auto* const words = static_cast<char*>(fabricshm_alloc(job->arena, 4096));
        REQUIRE(words != nullptr);
        words[17] = 42;
        Forked reader([=] { return static_cast<int>(words[17]); });
        Forked late([=] { return static_cast<int>(words[17]); });
        const int status = reader.go_on();
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 42);
        job.reset();
        // The daemon empties an arena that no session has any more, sooner or later.
        const int after = late.go_on();
        CHECK(WIFEXITED(after));
        const bool is_there_or_empty = WEXITSTATUS(after) == 42 || WEXITSTATUS(after) == 0;
        CHECK(is_there_or_empty);
    }

    TEST_CASE("a child that is forked while other threads open has nothing of a device") {
        const TemporaryDirectory directory;
        const std::string device = device_in(directory);
        const Daemon daemon(
            {"--pool-backend=dax", "--pool-dax-device=" + device, "--pool-capacity=0"});
        const Openers openers(daemon.socket());
        REQUIRE(openers.wait_for_first());
        int with_memory = 0, with_device = 0, with_connection = 0, others = 0;
        for (int i = 0; i < kForks; ++i) {
            const pid_t child = ::fork();
            if (child == 0) {
                ::alarm(30);
                ::_exit((has_mapped(device) ? 1 : 0) | (has_open(device) ? 2 : 0) |
                        (has_connection(daemon.socket()) ? 4 : 0) |
                        (i % kForksThatOpen == 0 && !Job(daemon.socket(), 1 << 20).ok ? 8 : 0));
            }
            int status = -1;
            REQUIRE(::waitpid(child, &status, 0) == child);
            const int found = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
            with_memory += (found & 1) != 0;
            with_device += (found & 2) != 0;
            with_connection += (found & 4) != 0;
            others += !WIFEXITED(status) || (found & 8) != 0;
        }
        CHECK(with_memory == 0);
        CHECK(with_device == 0);
        CHECK(with_connection == 0);
        CHECK(others == 0);
        CHECK(openers.opened() > kForks / 10);
        CHECK(openers.failed() == 0);
    }

    TEST_CASE("fork() does not wait for a daemon that is silent") {
        const TemporaryDirectory directory;
        const std::string device = device_in(directory);
        const Daemon daemon(
            {"--pool-backend=dax", "--pool-dax-device=" + device, "--pool-capacity=0"});
        const Openers openers(daemon.socket());
        REQUIRE(openers.wait_for_first());
        ::kill(daemon.pid(), SIGSTOP);
        const auto before = std::chrono::steady_clock::now();
        int sound = 0;
        for (int i = 0; i < kForksOfSilent; ++i) {
            const pid_t child = ::fork();
            if (child == 0) ::_exit(has_mapped(device) || has_open(device) ? 1 : 0);
            int status = -1;
            ::waitpid(child, &status, 0);
            sound += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
        // The openers would have waited a minute.
        CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(30));
        ::kill(daemon.pid(), SIGCONT);
        CHECK(sound == kForksOfSilent);
        CHECK(openers.failed() == 0);
    }
}

#include "tests/support/daemon.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "libfabricshm/os/process.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "tests/support/pool_choice.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;

namespace test_support {

namespace {

// Generous: the machine may be building something at the same time, and sanitizers start slowly.
constexpr auto kStartTimeout = 60s;
constexpr auto kStopTimeout = 30s;

// The child's part: becomes fabricd, or ends with 127. `parent` is the process that has to be
// alive.
[[noreturn]] void become_fabricd(const std::vector<std::string>& arguments, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // it died before the line above
    std::vector<char*> pointers;
    for (const auto& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
    pointers.push_back(nullptr);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
}

bool ended_within(pid_t pid, int& status, std::chrono::milliseconds time) {
    const auto pidfd = open_pidfd(pid);
    if (pidfd.ok()) {
        (void)wait_ready(pidfd.value().get(), POLLIN, Clock::now() + time, "wait for fabricd");
    }
    return ::waitpid(pid, &status, WNOHANG) == pid;
}

}  // namespace

Daemon::Daemon(std::vector<std::string> options) : options_(std::move(options)) {
    char name[] = "/tmp/fabric-test-XXXXXX";
    folder_ = ::mkdtemp(name);
    socket_ = folder_ + "/attach.sock";
    log_file_ = folder_ + "/log";
    start();
}

Daemon::~Daemon() {
    if (pid_ > 0) stop();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

void Daemon::start() {
    std::vector<std::string> arguments{FABRICD_PATH,
                                       "--server-runtime-dir=" + folder_,
                                       "--server-socket=" + socket_,
                                       "--pool-capacity=256MiB",
                                       "--pool-huge-pages=off",
                                       "--arena-default-bytes=64MiB",
                                       "--log-level=debug",
                                       "--log-file=" + log_file_};
    for (const auto& option : PoolChoice::from_environment().options()) {
        arguments.push_back(option);
    }
    arguments.insert(arguments.end(), options_.begin(), options_.end());
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) become_fabricd(arguments, parent);

    const TimePoint deadline = Clock::now() + kStartTimeout;
    while (!UnixSocket::connect(socket_, deadline).ok()) {
        int status = 0;
        const bool ended = ended_within(pid_, status, 5ms);
        if (!ended && Clock::now() < deadline) continue;
        std::fprintf(stderr, "fabricd did not start (status %d):\n%s\n", status, log().c_str());
        std::abort();
    }
}

void Daemon::kill() {
    if (pid_ <= 0) return;  // dead already, and kill(-1) would mean all processes
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

int Daemon::stop() {
    if (pid_ <= 0) return -1;
    ::kill(pid_, SIGTERM);
    int status = 0;
    if (!ended_within(pid_, status, kStopTimeout)) {
        std::fprintf(stderr, "fabricd does not stop:\n%s\n", log().c_str());
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, &status, 0);
    }
    pid_ = -1;
    return status;
}

std::string Daemon::log() const {
    std::ifstream file(log_file_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace test_support

#include "tests/support/children.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <new>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/os/futex.hpp"
#include "libfabricshm/os/process.hpp"
#include "libfabricshm/os/unix_socket.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;

namespace test_support {

namespace {

constexpr auto kTimeout = 60s;

std::atomic<std::uint32_t>& word_at(void* memory) {
    return *static_cast<std::atomic<std::uint32_t>*>(memory);
}

}  // namespace

Child::Child(const std::function<int()>& body) {
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    FABRIC_CHECK(pid_ >= 0);
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    const int code = body();
    std::fflush(nullptr);
    ::_exit(code);
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

Child::~Child() {
    if (pid_ > 0) kill();
}

void Child::kill() {
    // Once it was killed or waited for there is no number left, and kill(-1) would mean all
    // processes.
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

int Child::wait() {
    const auto pidfd = open_pidfd(pid_);
    if (pidfd.ok()) {
        (void)wait_ready(pidfd.value().get(), POLLIN, Clock::now() + kTimeout, "wait for child");
    }
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<int> run_children(int count, const std::function<int(int rank)>& body) {
    std::vector<Child> children;
    for (int rank = 0; rank < count; ++rank) children.emplace_back([&] { return body(rank); });
    std::vector<int> codes;
    for (Child& child : children) codes.push_back(child.wait());
    return codes;
}

Gate::Gate()
    : memory_(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    FABRIC_CHECK(memory_ != MAP_FAILED);
    new (memory_) std::atomic<std::uint32_t>(0);
}

Gate::~Gate() {
    ::munmap(memory_, 4096);
}

void Gate::open() {
    word_at(memory_).fetch_add(1);
    futex_wake(&word_at(memory_), INT_MAX);
}

bool Gate::wait(int count) const {
    const TimePoint deadline = Clock::now() + kTimeout;
    for (;;) {
        const std::uint32_t opened = word_at(memory_).load();
        if (opened >= static_cast<std::uint32_t>(count)) return true;
        if (!futex_wait(&word_at(memory_), opened, deadline)) return false;
    }
}

}  // namespace test_support

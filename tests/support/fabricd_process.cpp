#include "tests/support/fabricd_process.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <utility>

#include "libfabricshm/os/process.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "tests/support/pool_choice.hpp"

namespace test_support {

FabricdProcess::FabricdProcess(const std::string& folder, const std::string& fault,
                               std::vector<std::string> options) {
    std::vector<std::string> arguments{FABRICD_PATH,
                                       "--config=/dev/null",
                                       "--server-runtime-dir=" + folder,
                                       "--server-socket=" + socket_in(folder),
                                       "--state-dir=" + state_in(folder),
                                       "--pool-capacity=256MiB",
                                       "--pool-huge-pages=off",
                                       "--arena-default-bytes=4MiB",
                                       "--log-level=warning",
                                       "--log-file=" + folder + "/log"};
    for (auto& option : PoolChoice::from_environment().options()) {
        arguments.push_back(std::move(option));
    }
    arguments.insert(arguments.end(), options.begin(), options.end());
    std::vector<char*> pointers;
    for (const auto& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
    pointers.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!fault.empty()) ::setenv("FABRIC_FAULT", fault.c_str(), 1);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
}

FabricdProcess::~FabricdProcess() {
    kill();
}

bool FabricdProcess::ended() {
    if (pid_ <= 0) return true;
    if (::waitpid(pid_, nullptr, WNOHANG) != pid_) return false;
    pid_ = -1;
    return true;
}

void FabricdProcess::kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

int FabricdProcess::stop() {
    if (pid_ <= 0) return -1;
    const auto pidfd = fabricshm::open_pidfd(pid_);
    ::kill(pid_, SIGTERM);
    if (pidfd.ok()) {
        const auto deadline = fabricshm::Clock::now() + std::chrono::minutes(1);
        [[maybe_unused]] const auto ended =
            fabricshm::wait_ready(pidfd->get(), POLLIN, deadline, "wait for fabricd");
    }
    int status = -1;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return -1;
    pid_ = -1;
    return status;
}

}  // namespace test_support

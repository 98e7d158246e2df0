// `fabric-data serve` as a child process.

#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "libfabricshm/os/unix_socket.hpp"

namespace test_support {

class DataServeProcess {
  public:
    /// Returns when it answers; false of is_up() when it ended instead.
    DataServeProcess(const std::string& program, const std::string& file, const std::string& socket,
                     const std::string& daemon)
        : arguments_{program, "serve", "--config", file, "--socket", socket, "--daemon", daemon},
          socket_(socket) {
        start();
    }
    ~DataServeProcess() { kill(); }
    DataServeProcess(const DataServeProcess&) = delete;
    DataServeProcess& operator=(const DataServeProcess&) = delete;

    void start() {
        std::vector<char*> pointers;
        for (auto& argument : arguments_) pointers.push_back(argument.data());
        pointers.push_back(nullptr);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::execv(pointers[0], pointers.data());
            ::_exit(127);
        }
        const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(60);
        while (fabricshm::Clock::now() < deadline) {
            is_up_ = fabricshm::UnixSocket::connect(socket_, deadline).ok();
            if (is_up_) return;
            if (::waitpid(pid_, &status_, WNOHANG) == pid_) {
                pid_ = -1;
                return;
            }
            ::usleep(2000);
        }
    }
    void kill() {
        if (pid_ <= 0) return;
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }
    /// SIGTERM; its wait status.
    int stop() {
        if (pid_ <= 0) return -1;
        ::kill(pid_, SIGTERM);
        ::waitpid(pid_, &status_, 0);
        pid_ = -1;
        return status_;
    }
    bool is_up() const noexcept { return is_up_; }

  private:
    std::vector<std::string> arguments_;
    std::string socket_;
    pid_t pid_ = -1;
    int status_ = 0;
    bool is_up_ = false;
};

}  // namespace test_support

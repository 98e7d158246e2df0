// The real fabricd, as a child process in a folder of its own, on the pool of pool_choice.hpp.

#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace test_support {

/// Starts in the constructor and returns when the daemon answers. One that does not start ends the
/// test program with the daemon's log. Dies with the test program. Make it on the main thread.
class Daemon {
  public:
    /// 256 MiB of pool, small pages; `options` are added to the command line and win.
    explicit Daemon(std::vector<std::string> options = {});
    /// Stops it (SIGTERM) and removes the folder.
    ~Daemon();
    Daemon(const Daemon&) = delete;
    Daemon& operator=(const Daemon&) = delete;

    const std::string& socket() const noexcept { return socket_; }
    const std::string& folder() const noexcept { return folder_; }
    pid_t pid() const noexcept { return pid_; }

    /// SIGKILL; returns when the process is gone.
    void kill();
    /// SIGTERM; returns the exit status as waitpid() gives it.
    int stop();
    /// Starts it again with the same folder, and so with the same journal.
    void start();

    /// What it logged so far.
    std::string log() const;

  private:
    std::vector<std::string> options_;
    std::string folder_;
    std::string socket_;
    std::string log_file_;
    pid_t pid_ = -1;
};

}  // namespace test_support

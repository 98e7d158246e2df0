// fabricd as a child process that is expected to die: with a fault armed, or killed by the test.
// (support/daemon.hpp is for tests that want it to live.)

#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace test_support {

/// Starts FABRICD_PATH over `socket` and `state`. Does not wait until it serves:
/// WireClient::attach() tries again until it does. Killed when it goes out of scope.
class FabricdProcess {
  public:
    FabricdProcess(const std::string& folder, const std::string& fault = "",
                   std::vector<std::string> options = {});
    ~FabricdProcess();
    FabricdProcess(const FabricdProcess&) = delete;
    FabricdProcess& operator=(const FabricdProcess&) = delete;

    static std::string socket_in(const std::string& folder) { return folder + "/attach.sock"; }
    static std::string state_in(const std::string& folder) { return folder + "/state"; }

    pid_t pid() const noexcept { return pid_; }
    /// True once it has ended; never waits.
    bool ended();
    /// SIGKILL, unless it is dead already; returns when it is gone.
    void kill();
    /// SIGTERM; its wait status, -1 when it does not end within a minute.
    int stop();

  private:
    pid_t pid_ = -1;
};

}  // namespace test_support

// The alarms of a job: each runs the command of its file.

#pragma once

#include <string>
#include <vector>

#include "fabricd/jobs/child.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

class JobAlarms {
  public:
    /// `job`: "job 7 (rn50)"; command "": none are given.
    JobAlarms(std::string command, std::string job)
        : command_(std::move(command)), job_(std::move(job)) {}

    /// Starts the command with the line in FABRIC_ALARM, and does not wait for it.
    void ring(const std::string& text);
    const std::vector<Child>& running() const noexcept { return running_; }
    /// Until they have ended, so long at most.
    void wait(fabricshm::Duration limit) const;

  private:
    std::string command_;
    std::string job_;
    std::vector<Child> running_;
};

/// All of this process's, as start_child() takes it.
std::vector<std::string> own_environment();

}  // namespace fabricd

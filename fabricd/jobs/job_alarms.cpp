#include "fabricd/jobs/job_alarms.hpp"

#include <poll.h>
#include <unistd.h>

#include <csignal>

#include "libfabricshm/os/process.hpp"

namespace fabricd {

using fabricshm::Clock;

void JobAlarms::ring(const std::string& text) {
    // Those that have ended, so that a job of many restarts has few zombies.
    std::erase_if(running_, [](const Child& child) {
        if (pidfd_alive(child.pidfd)) return false;
        reap(child);
        return true;
    });
    if (command_.empty()) return;
    ChildSpec spec;
    spec.arguments = {"/bin/sh", "-c", command_};
    spec.environment = own_environment();
    spec.environment.push_back("FABRIC_ALARM=" + job_ + ": " + text);
    spec.parent_death = SIGKILL;
    auto child = start_child(spec);
    if (child.ok()) running_.push_back(std::move(child).value());
}

void JobAlarms::wait(fabricshm::Duration limit) const {
    const auto by = fabricshm::deadline_after(Clock::now(), limit);
    for (const Child& child : running_) {
        while (pidfd_alive(child.pidfd) && Clock::now() < by) {
            pollfd wait{child.pidfd.get(), POLLIN, 0};
            ::poll(&wait, 1, 100);
        }
    }
}

std::vector<std::string> own_environment() {
    std::vector<std::string> all;
    for (char** one = environ; *one != nullptr; ++one) all.emplace_back(*one);
    return all;
}

}  // namespace fabricd

#include "fabricd/ctl/job_processes.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "fabricd/jobs/agent_door.hpp"
#include "fabricd/jobs/job_folder.hpp"
#include "fabricd/jobs/manager_state.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricd {

using fabricshm::Clock;

namespace {

constexpr auto kAgentsLeaveWithin = std::chrono::seconds(2);

void send_signal(const fabricshm::Fd& process, int number) {
    ::syscall(SYS_pidfd_send_signal, process.get(), number, nullptr, 0);
}

/// The sockets of a job's agents, of those that were killed, too.
std::vector<std::string> door_paths(const JobFolder& folder) {
    std::vector<std::string> paths;
    std::error_code error;
    std::filesystem::directory_iterator at(folder.path(), error), end;
    for (; !error && at != end; at.increment(error)) {
        const std::string name = at->path().filename();
        if (name.starts_with("agent-") && name.ends_with(".sock")) paths.push_back(at->path());
    }
    return paths;
}

/// Until all have ended; false when the time is over.
bool wait_for_ends(const std::vector<Child>& agents, fabricshm::Duration limit) {
    const auto by = fabricshm::deadline_after(Clock::now(), limit);
    for (const Child& agent : agents) {
        while (pidfd_alive(agent.pidfd)) {
            if (Clock::now() >= by) return false;
            pollfd wait{agent.pidfd.get(), POLLIN, 0};
            ::poll(&wait, 1, 50);
        }
    }
    return true;
}

}  // namespace

std::vector<JobProcess> job_processes() {
    std::vector<JobProcess> found;
    std::error_code error;
    std::filesystem::directory_iterator at("/proc", error), end;
    for (; !error && at != end; at.increment(error)) {
        const std::string name = at->path().filename();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        struct stat owner = {};
        if (::stat(at->path().c_str(), &owner) != 0 || owner.st_uid != ::getuid()) continue;
        const pid_t pid = std::atoi(name.c_str());
        // Before its environment is read, which is that of the same process then.
        auto handle = fabricshm::open_pidfd(pid);
        if (!handle.ok()) continue;
        std::ifstream file(at->path() / "environ");
        std::string variable, job, folder;
        while (std::getline(file, variable, '\0')) {
            if (variable.starts_with("FABRIC_JOB=")) job = variable.substr(11);
            if (variable.starts_with("FABRIC_JOBS_DIR=")) folder = variable.substr(16);
        }
        // Another folder has numbers of its own.
        const bool is_here =
            folder.empty() ? std::getenv("FABRIC_JOBS_DIR") == nullptr : folder == jobs_dir();
        if (job.empty() || !is_here) continue;
        found.push_back(
            {pid, static_cast<unsigned>(std::atoi(job.c_str())), std::move(handle).value()});
    }
    return found;
}

void kill_job_processes(unsigned job) {
    for (const JobProcess& one : job_processes()) {
        if (one.job != job || one.pid == ::getpid()) continue;
        send_signal(one.handle, SIGKILL);
    }
}

JobEdge end_lost_job(const JobFolder& folder, JobEdge end) {
    if (auto decided = decided_end(folder)) end = std::move(*decided);
    const auto doors = door_paths(folder);
    std::vector<Child> agents;
    for (const std::string& door : doors) {
        if (auto visit = visit_door(door); visit.ok()) agents.push_back(std::move(visit->agent));
    }
    // Before the ranks are killed, and not by SIGKILL: an agent that leaves takes with it what its
    // ranks have started, also what has given itself another session and environment.
    for (const Child& agent : agents) {
        send_signal(agent.pidfd, SIGTERM);
        send_signal(agent.pidfd, SIGCONT);
    }
    kill_job_processes(folder.number());
    if (!wait_for_ends(agents, kAgentsLeaveWithin)) {
        for (const Child& agent : agents) send_signal(agent.pidfd, SIGKILL);
        wait_for_ends(agents, kAgentsLeaveWithin);
        kill_job_processes(folder.number());
    }
    // Last: a kill of this process before leaves a lost job, for the next one to end.
    folder.note(end);
    for (const std::string& door : doors) ::unlink(door.c_str());
    ::unlink(folder.state_path().c_str());
    return end;
}

}  // namespace fabricd

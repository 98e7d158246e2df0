#include "fabricd/ctl/job_slurm_rank.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "fabricd/ctl/job_check.hpp"
#include "fabricd/ctl/job_slurm.hpp"
#include "fabricd/jobs/child.hpp"
#include "fabricd/jobs/program_path.hpp"
#include "fabricd/jobs/rank_start.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Fd;
using fabricshm::TimePoint;

namespace {

constexpr auto kRankNotStarted = static_cast<CtlExit>(125);
// MASTER_PORT: below what the kernel gives away itself, and another for another job.
constexpr unsigned kFirstPort = 20000;
constexpr unsigned kPorts = 12000;
// Slurm signals the processes of a step one after the other, the rank maybe before this process.
constexpr int kSameSignalMs = 500;

std::string rank_variable(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

std::optional<unsigned> count_variable(const char* name) {
    const std::string text = rank_variable(name);
    unsigned number = 0;
    const char* end = text.data() + text.size();
    const auto [rest, failure] = std::from_chars(text.data(), end, number);
    if (text.empty() || failure != std::errc{} || rest != end) return {};
    return number;
}

/// A rank of the plan, where Slurm put it.
struct SlurmRank {
    std::string folder;
    JobSpec spec;
    std::vector<JobNode> nodes;
    JobPlan plan;
    unsigned rank = 0;
    unsigned slurm = 0;  // Slurm's number of the job; of a heterogeneous one the leader's
};

/// What Slurm says of this task has to be what the plan has.
std::string find_place(SlurmRank& own) {
    const auto rank = count_variable("SLURM_PROCID");
    const auto world = count_variable("SLURM_STEP_NUM_TASKS");
    const auto local = count_variable("SLURM_LOCALID");
    const auto job = count_variable("SLURM_JOB_ID");
    if (!rank || !world || !local || !job) return "jobs rank is started by the script of a job";
    if (*world != own.plan.ranks.size() || *rank >= *world) {
        return "Slurm started " + std::to_string(*world) + " tasks for " +
               std::to_string(own.plan.ranks.size()) + " ranks";
    }
    if (own.plan.ranks[*rank].local_rank != *local) {
        return "rank " + std::to_string(*rank) + " is task " + std::to_string(*local) +
               " of its node, not " + std::to_string(own.plan.ranks[*rank].local_rank);
    }
    own.rank = *rank;
    // Slurm sets SLURM_JOB_ID to the leader's in all components.
    own.slurm = *job;
    return "";
}

RankContext context_of(const SlurmRank& own) {
    RankContext context;
    const std::string number = std::filesystem::path(own.folder).filename();
    context.job = static_cast<unsigned>(std::strtoul(number.c_str(), nullptr, 10));
    context.attempt = count_variable("FABRIC_JOB_ATTEMPT").value_or(0);
    context.run = "slurm-" + std::to_string(own.slurm) + "-" + std::to_string(context.attempt);
    context.master_port = kFirstPort + (own.slurm * 7 + context.attempt) % kPorts;
    const std::string head = rank_variable("FABRIC_JOB_HEAD");
    if (own.nodes.size() > 1 && !head.empty()) context.master_address = head;
    context.python_packages = find_python_packages();
    context.interpreter =
        find_program(own.spec.interpreter.empty() ? own.spec.script : own.spec.interpreter);
    context.cores = count_variable("SLURM_CPUS_ON_NODE").value_or(1);
    return context;
}

/// The plugin of Slurm has set the socket, the arena and its bytes, where a group has a pool.
void add_fabric(const SlurmRank& own, std::vector<std::string>& environment) {
    const auto set = [&](const std::string& name, const std::string& value) {
        std::erase_if(environment, [&](const auto& one) { return one.starts_with(name + "="); });
        environment.push_back(name + "=" + value);
    };
    if (own.spec.pool() == 0) set("FABRIC_ARENA", "slurm-" + std::to_string(own.slurm));
    const PlacedRank& place = own.plan.ranks[own.rank];
    const std::string& device = own.nodes[place.node].devices[place.device].name;
    if (!device.empty()) set("FABRIC_DEVICE", device);
}

Fd open_log(const SlurmRank& own) {
    const std::string path = own.folder + "/rank-" + std::to_string(own.rank) + ".log";
    return Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

Fd block_rank_signals() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) ::sigaddset(&set, number);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    return Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

/// Waits for the end of the rank, and ends it on the signals for that. True: there was one.
bool follow_rank(const Child& child, const Fd& signals, fabricshm::Duration grace) {
    std::optional<TimePoint> deadline;
    pollfd waits[] = {{child.pidfd.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    for (;;) {
        int wait_ms = -1;
        if (deadline) {
            const auto left =
                std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
            wait_ms = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
        }
        const int ready = ::poll(waits, 2, wait_ms);
        if (waits[0].revents != 0) return deadline.has_value() || waits[1].revents != 0;
        if (ready == 0) {
            signal_group(child.pid, SIGKILL);
            deadline = Clock::now() + std::chrono::seconds(1);
        }
        signalfd_siginfo info = {};
        while (::read(signals.get(), &info, sizeof info) == sizeof info) {
            const int number = static_cast<int>(info.ssi_signo);
            const bool is_passed_on = number == SIGUSR1 || number == SIGUSR2;
            signal_group(child.pid, is_passed_on ? number : SIGTERM);
            if (!is_passed_on && !deadline) deadline = Clock::now() + grace;
        }
    }
}

CtlExit run_rank(const SlurmRank& own, const Fd& signals) {
    const RankContext context = context_of(own);
    if (context.interpreter.empty()) {
        return fail_job(kRankNotStarted, "there is no program " + (own.spec.interpreter.empty()
                                                                       ? own.spec.script
                                                                       : own.spec.interpreter));
    }
    std::vector<std::string> base;
    for (char** one = environ; *one != nullptr; ++one) base.emplace_back(*one);
    ChildSpec spec;
    spec.arguments = rank_arguments(own.spec, context);
    spec.environment = rank_environment(own.spec, own.nodes, own.plan, own.rank, context, base);
    add_fabric(own, spec.environment);
    const Fd log = open_log(own);
    if (!log) return fail_job(kRankNotStarted, "can't write the rank's log in " + own.folder);
    spec.output = log.get();
    spec.error = log.get();
    spec.parent_death = SIGKILL;
    adopt_orphans();
    const auto child = start_child(spec);
    const std::string name = "rank " + std::to_string(own.rank);
    if (!child.ok()) {
        return fail_job(kRankNotStarted,
                        name + " did not start: " + fabricshm::explanation_of(child.error()));
    }
    bool was_ended = follow_rank(*child, signals, own.spec.grace);
    const int code = reap(*child);
    pollfd signal = {signals.get(), POLLIN, 0};
    if (code == 128 + SIGTERM) was_ended |= ::poll(&signal, 1, kSameSignalMs) > 0;
    kill_strays({});
    if (code == 0) return CtlExit::kOk;
    if (was_ended) return CtlExit::kFailed;
    return fail_job(static_cast<CtlExit>(code),
                    name + " ended with code " + std::to_string(code) +
                        (code > 128 ? " (signal " + std::to_string(code - 128) + ")" : ""));
}

}  // namespace

CtlExit run_slurm_rank(const CtlOptions& options) {
    // First of all: a signal that came before would end this process, and srun would have its code.
    const Fd signals = block_rank_signals();
    if (!signals) return fail_job(kRankNotStarted, "can't take signals");
    SlurmRank own;
    own.folder = options.job.what;
    std::error_code error;
    if (!std::filesystem::is_directory(own.folder, error)) {
        return fail_job(kRankNotStarted,
                        "this node does not see the job's folder " + own.folder +
                            ": set FABRIC_JOBS_DIR to a folder of a file system that all share");
    }
    if (const auto bad = read_slurm_plan(own.folder, own.spec, own.nodes, own.plan)) {
        return fail_job(kRankNotStarted, *bad);
    }
    const std::string wrong = find_place(own);
    if (!wrong.empty()) return fail_job(kRankNotStarted, wrong);
    return run_rank(own, signals);
}

}  // namespace fabricd

#include "fabricd/ctl/job_commands.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "fabricd/config/device_file.hpp"
#include "fabricd/config/job_file.hpp"
#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/job_check.hpp"
#include "fabricd/ctl/job_devices.hpp"
#include "fabricd/ctl/job_processes.hpp"
#include "fabricd/ctl/job_records.hpp"
#include "fabricd/ctl/job_remove.hpp"
#include "fabricd/ctl/job_service.hpp"
#include "fabricd/ctl/job_slurm.hpp"
#include "fabricd/ctl/job_slurm_rank.hpp"
#include "fabricd/ctl/job_view.hpp"
#include "fabricd/jobs/group_agent.hpp"
#include "fabricd/jobs/job_folder.hpp"
#include "fabricd/jobs/job_numbers.hpp"
#include "fabricd/jobs/job_plan.hpp"
#include "fabricd/jobs/manager_state.hpp"
#include "fabricd/jobs/task_manager.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;

namespace {

/// A job file with where its ranks would go.
struct CheckedJob {
    std::string text;  // of its file
    JobSpec spec;
    std::vector<JobNode> nodes;
    JobPlan plan;
    std::string attach_socket;  // "": without a daemon
};

std::string job_host_name() {
    char name[HOST_NAME_MAX + 1] = "";
    ::gethostname(name, sizeof name);
    const std::string whole = name;
    return whole.substr(0, whole.find('.'));
}

/// Next to the admin socket. Where none is there, as $FABRIC_SOCKET says: server.socket may be
/// anywhere.
std::string attach_socket_of(const std::string& admin_socket) {
    std::error_code error;
    const std::filesystem::path next_to =
        std::filesystem::absolute(admin_socket, error).parent_path() / "attach.sock";
    const char* named = std::getenv("FABRIC_SOCKET");
    if (named == nullptr || std::filesystem::exists(next_to, error)) return next_to;
    return std::filesystem::absolute(named, error);
}

/// The pool and the devices that the daemon has now.
CtlExit ask_daemon(const CtlOptions& options, JobNode& node, std::string& attach_socket) {
    const std::string socket = find_admin_socket(options.socket);
    auto client = AdminClient::connect(socket, milliseconds(options.timeout));
    if (!client.ok() && client.error().code == Errc::kDaemon) {
        return fail_job(CtlExit::kNoDaemon, "no fabricd answers at " + socket +
                                                " (start it, or --without-daemon for scripts that "
                                                "don't use the fabric)");
    }
    attach_socket = attach_socket_of(socket);
    if (!client.ok() && client.error().code == Errc::kDenied) {
        // What the pool has free the daemon says when the ranks ask for it.
        if (!options.job.devices.empty()) return CtlExit::kOk;
        return fail_job(CtlExit::kFailed, socket +
                                              " is for the daemon's own user and root: name the "
                                              "devices by --devices FILE");
    }
    if (!client.ok()) return fail_job(CtlExit::kFailed, fabricshm::explanation_of(client.error()));
    const auto status = client->fetch(View::kStatus, 0);
    const auto devices = client->fetch(View::kDevices, 0);
    if (!status.ok() || !devices.ok()) return fail_job(CtlExit::kFailed, client->last_text());
    if (status->status.draining) {
        return fail_job(CtlExit::kFailed,
                        "fabricd is draining and takes no new jobs (fabricctl drain "
                        "--off)");
    }
    const PoolView& pool = status->status.pool;
    node.pool_free = pool.capacity_bytes - std::min(pool.capacity_bytes, pool.used_bytes);
    for (const DeviceView& device : devices->devices) {
        if (!device.configured) continue;
        node.devices.push_back(job_device(device.spec, device.bytes_used));
        if (!device.faults.empty()) node.devices.back().fault = "faulty: " + device.faults;
    }
    return CtlExit::kOk;
}

CtlExit find_node(const CtlOptions& options, CheckedJob& job) {
    JobNode node{job_host_name(), std::numeric_limits<Bytes>::max(), {}};
    if (!options.job.without_daemon) {
        const CtlExit asked = ask_daemon(options, node, job.attach_socket);
        if (asked != CtlExit::kOk) return asked;
    }
    if (!options.job.devices.empty()) {
        std::vector<DeviceSpec> specs;
        if (const auto bad = read_device_file(options.job.devices, specs)) {
            return fail_job(CtlExit::kUsage, "--devices: " + *bad);
        }
        node.devices.clear();
        for (const DeviceSpec& spec : specs) node.devices.push_back(job_device(spec, 0));
    }
    // A host without a device file has its processors.
    if (node.devices.empty()) {
        node.devices.push_back(
            {"", "cpu", static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)), node.pool_free});
    }
    job.nodes.push_back(std::move(node));
    return CtlExit::kOk;
}

CtlExit check_job(const CtlOptions& options, CheckedJob& job) {
    const std::string& file = options.job.what;
    const CtlExit read = read_checked_job(options, job.text, job.spec);
    if (read != CtlExit::kOk) return read;
    const CtlExit found = find_node(options, job);
    if (found != CtlExit::kOk) return found;
    const auto problem = plan_job(job.spec, job.nodes, job.plan);
    return problem ? fail_job(CtlExit::kFailed, file + ": " + *problem) : CtlExit::kOk;
}

std::string placed_text(const CheckedJob& job) {
    return std::to_string(job.plan.ranks.size()) + " ranks of " +
           std::to_string(job.plan.agents.size()) + " groups on " + job.nodes[0].name;
}

CtlExit show_check(const CtlOptions& options) {
    if (options.job.is_slurms) return show_slurm_check(options);
    CheckedJob job;
    const CtlExit code = check_job(options, job);
    if (code != CtlExit::kOk) return code;
    const auto text = options.json ? plan_json(job.spec, job.nodes, job.plan)
                                   : plan_text(job.spec, job.nodes, job.plan);
    std::fputs(text.c_str(), stdout);
    return CtlExit::kOk;
}

std::vector<std::string> agent_words() {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    return {error ? "/usr/bin/fabricctl" : self.string(), "jobs", "agent"};
}

// What a manager of the queue ends with when its job does not fit now: EX_TEMPFAIL of sysexits.h.
constexpr auto kNotNow = static_cast<CtlExit>(75);

CtlExit manage(const CtlOptions& options, const CheckedJob& checked, JobFolder& folder,
               fabricshm::Fd signals, bool is_here) {
    folder.note({0, JobPhase::kPlaced, JobOutcome::kNone, 0, placed_text(checked)});
    const bool has_names = !checked.nodes[0].devices[0].name.empty();
    const ManagedJob job{checked.spec,
                         checked.nodes,
                         checked.plan,
                         checked.attach_socket,
                         agent_words(),
                         is_here,
                         {},
                         has_names ? device_look(options) : DeviceLook{}};
    return static_cast<CtlExit>(run_task_manager(job, folder, std::move(signals)));
}

/// What the manager will be started with: as it would be from this shell.
std::string manager_options(const CtlOptions& options) {
    std::string words;
    const auto add = [&](const std::string& word) { words += word + '\0'; };
    if (options.job.without_daemon) add("--without-daemon");
    std::error_code error;
    if (!options.job.devices.empty()) {
        add("--devices");
        add(std::filesystem::absolute(options.job.devices, error));
    }
    if (!options.socket.empty()) {
        add("--socket");
        add(std::filesystem::absolute(options.socket, error));
    }
    return words;
}

/// The same of a manager that takes over: what was said of the job's first one holds, but for what
/// its own command line says.
void take_options(const JobFolder& folder, CtlOptions& options) {
    std::ifstream file(folder.path() + "/options");
    for (std::string word; std::getline(file, word, '\0');) {
        if (word == "--without-daemon") options.job.without_daemon = true;
        std::string* const value = word == "--devices"  ? &options.job.devices
                                   : word == "--socket" ? &options.socket
                                                        : nullptr;
        std::string given;
        if (value == nullptr || !std::getline(file, given, '\0')) continue;
        if (value->empty()) *value = given;
    }
}

CtlExit run_here(const CtlOptions& options, fabricshm::Fd signals) {
    CheckedJob checked;
    const CtlExit code = check_job(options, checked);
    if (code != CtlExit::kOk) return code;
    const JobEdge admitted{unix_ms_now(), JobPhase::kAdmitted, JobOutcome::kNone, 0, "run by hand"};
    auto folder = JobFolder::create_locked(jobs_dir(), {{"job.toml", checked.text},
                                                        {"options", manager_options(options)},
                                                        {"journal", journal_line(admitted)}});
    if (!folder.ok()) return fail_job(CtlExit::kFailed, fabricshm::explanation_of(folder.error()));
    std::fprintf(stderr, "fabricctl: job %u, logs in %s\n", folder->number(),
                 folder->path().c_str());
    return manage(options, checked, *folder, std::move(signals), true);
}

fabricshm::Result<JobFolder> numbered_folder(const std::string& what) {
    const auto number = job_number_of(what);
    if (number) return JobFolder::open(jobs_dir(), *number);
    return fabricshm::explain({Errc::kInvalid, 0, "find a job"}, "it takes the number of a job");
}

/// Of a job by its number, or by a name that one job has which has not ended.
fabricshm::Result<JobFolder> resumed_folder(const std::string& what) {
    if (job_number_of(what)) return numbered_folder(what);
    auto records = read_job_records(jobs_dir());
    std::erase_if(records, [&](const JobRecord& one) {
        return one.job.name == what && one.edges.back().state == JobPhase::kEnded;
    });
    std::string problem;
    if (what.empty()) problem = "jobs run --resume takes a job's number or name";
    const JobRecord* found = what.empty() ? nullptr : find_only_record(records, what, problem);
    if (found == nullptr) {
        return fabricshm::explain({Errc::kNotFound, 0, "find a job"}, "%s", problem.c_str());
    }
    return JobFolder::open(jobs_dir(), found->job.number);
}

/// Takes over the agents of a manager that was killed, which wait for a moment.
CtlExit run_resumed(CtlOptions options, fabricshm::Fd signals) {
    auto folder = resumed_folder(options.job.what);
    if (!folder.ok()) return fail_job(CtlExit::kFailed, fabricshm::explanation_of(folder.error()));
    take_options(*folder, options);
    const std::string name = "job " + std::to_string(folder->number());
    if (slurm_number(*folder)) {
        return fail_job(CtlExit::kFailed, name + " is one of Slurm's, which looks after it");
    }
    if (!folder->lock().ok()) return fail_job(CtlExit::kFailed, name + " has a task manager");
    const auto edges = folder->edges();
    const JobPhase last = edges.empty() ? JobPhase::kEnded : edges.back().state;
    if (last == JobPhase::kEnded) return fail_job(CtlExit::kFailed, name + " has ended");
    if (last == JobPhase::kQueued) return fail_job(CtlExit::kFailed, name + " has not begun");
    JobSpec spec;
    std::vector<JobNode> nodes;
    JobPlan plan;
    auto state = load_state(folder->state_path());
    // One that was ending has sent its agents home: they wait for no other one.
    const bool is_whole = state && last != JobPhase::kEnding &&
                          !read_job_file(folder->file_path(), spec) &&
                          take_plan(*state, spec, nodes, plan);
    if (!is_whole) {
        const bool is_decided = decided_end(*folder).has_value();
        const JobEdge end = end_lost_job(*folder, {0, JobPhase::kEnded, JobOutcome::kFailed,
                                                   128 + SIGKILL, "its task manager was killed"});
        if (is_decided) return static_cast<CtlExit>(end.code);
        return fail_job(CtlExit::kFailed, name + " can't be resumed: it has ended");
    }
    const bool has_names = !nodes[0].devices.empty() && !nodes[0].devices[0].name.empty();
    const std::string socket = state->attach_socket();
    ManagedJob job{spec,
                   nodes,
                   plan,
                   socket,
                   agent_words(),
                   !options.job.is_queued,
                   std::move(state),
                   has_names ? device_look(options) : DeviceLook{}};
    const int code = run_task_manager(std::move(job), *folder, std::move(signals));
    // What ranks of an agent that was killed had started has no agent that ends it.
    kill_job_processes(folder->number());
    return static_cast<CtlExit>(code);
}

/// For the queue: what is wrong goes to the journal.
CtlExit run_queued(CtlOptions options, fabricshm::Fd signals) {
    auto folder = numbered_folder(options.job.what);
    if (!folder.ok()) return fail_job(CtlExit::kFailed, fabricshm::explanation_of(folder.error()));
    if (!folder->lock().ok()) return kNotNow;
    const auto edges = folder->edges();
    if (edges.empty() || edges.back().state != JobPhase::kQueued) return kNotNow;
    options.job.what = folder->file_path();
    CheckedJob checked;
    const CtlExit code = check_job(options, checked);
    if (code == CtlExit::kUsage) {
        folder->note(
            {0, JobPhase::kEnded, JobOutcome::kFailed, static_cast<int>(code), last_job_failure()});
        return code;
    }
    if (code != CtlExit::kOk) {
        if (edges.back().reason != last_job_failure()) {
            folder->note({0, JobPhase::kQueued, JobOutcome::kNone, 0, last_job_failure()});
        }
        return kNotNow;
    }
    folder->note({0, JobPhase::kAdmitted, JobOutcome::kNone, 0, "its turn in the queue"});
    return manage(options, checked, *folder, std::move(signals), false);
}

CtlExit run_job(const CtlOptions& options) {
    if (options.job.is_slurms) {
        return fail_job(CtlExit::kUsage, "--slurm is of jobs check and jobs submit");
    }
    // First of all: the threads of gRPC inherit it.
    auto signals = block_job_signals();
    if (!signals.ok())
        return fail_job(CtlExit::kFailed, fabricshm::explanation_of(signals.error()));
    if (options.job.is_resumed) return run_resumed(options, std::move(signals).value());
    return options.job.is_queued ? run_queued(options, std::move(signals).value())
                                 : run_here(options, std::move(signals).value());
}

CtlExit submit_job(const CtlOptions& options) {
    if (options.job.is_slurms) return submit_slurm_job(options);
    CheckedJob checked;
    const CtlExit code = check_job(options, checked);
    if (code != CtlExit::kOk) return code;
    const std::string jobs = jobs_dir();
    const auto records = read_job_records(jobs);
    for (const std::string& word : checked.spec.after) {
        const JobRecord* other = find_record(records, word);
        if (other == nullptr) return fail_job(CtlExit::kUsage, "after: there is no job " + word);
        if (other->job.is_slurms) {
            return fail_job(CtlExit::kUsage,
                            "after: job " + word + " is one of Slurm's (submit --slurm)");
        }
    }
    std::string environment;
    for (char** one = environ; *one != nullptr; ++one) environment += std::string(*one) + '\0';
    std::error_code error;
    const JobEdge queued{unix_ms_now(), JobPhase::kQueued, JobOutcome::kNone, 0, "submitted"};
    const auto folder =
        JobFolder::create(jobs, {{"job.toml", checked.text},
                                 {"environment", environment},
                                 {"directory", std::filesystem::current_path(error)},
                                 {"options", manager_options(options)},
                                 {"journal", journal_line(queued)}});
    if (!folder.ok()) return fail_job(CtlExit::kFailed, fabricshm::explanation_of(folder.error()));
    std::printf(options.json ? "{\"job\":%u}\n" : "job %u\n", folder->number());
    if (!is_queue_served(jobs)) {
        std::fprintf(stderr,
                     "fabricctl: it waits until fabricctl jobs serve runs (systemctl --user "
                     "start fabric-jobs)\n");
    }
    return CtlExit::kOk;
}

CtlExit be_agent(const CtlOptions& options) {
    constexpr int kSocket = 3;  // where start_child() puts it
    struct stat kind = {};
    const bool is_started = ::fstat(kSocket, &kind) == 0 && S_ISSOCK(kind.st_mode);
    const auto is_number = [](const std::string& text, std::size_t digits) {
        return !text.empty() && text.size() <= digits &&
               text.find_first_not_of("0123456789") == std::string::npos;
    };
    const auto& more = options.job.more;  // the door, and the milliseconds
    if (!is_started || !is_number(options.job.what, 5) || more.size() != 2 ||
        !is_number(more[1], 9)) {
        return fail_job(CtlExit::kUsage, "jobs agent is started by jobs run");
    }
    const AgentOrder order{static_cast<unsigned>(std::stoul(options.job.what)), more[0],
                           std::chrono::milliseconds(std::stoul(more[1]))};
    return static_cast<CtlExit>(run_group_agent(fabricshm::Fd(kSocket), order));
}

}  // namespace

CtlExit serve_jobs(const CtlOptions& options) {
    using Run = CtlExit (*)(const CtlOptions&);
    static const std::map<std::string, Run> kActions = {
        {"check", show_check},   {"run", run_job},          {"submit", submit_job},
        {"list", list_jobs},     {"", list_jobs},           {"show", show_job},
        {"why", explain_job},    {"logs", show_job_logs},   {"cancel", cancel_job},
        {"remove", remove_jobs}, {"leaks", show_job_leaks}, {"serve", serve_job_queue},
        {"agent", be_agent},     {"rank", run_slurm_rank}};
    std::error_code error;
    const std::string jobs = jobs_dir();
    if (std::filesystem::exists(jobs, error) && !std::filesystem::is_directory(jobs, error)) {
        return fail_job(CtlExit::kFailed, jobs + " is no folder (FABRIC_JOBS_DIR)");
    }
    return kActions.at(options.job.action)(options);
}

}  // namespace fabricd

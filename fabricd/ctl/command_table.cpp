// The commands of fabricctl, one row each. The manual page fabricctl(1) has the same ones.

#include <algorithm>

#include "fabricd/ctl/cluster_commands.hpp"
#include "fabricd/ctl/ctl_command.hpp"
#include "fabricd/ctl/dashboard/dashboard_command.hpp"
#include "fabricd/ctl/decision_commands.hpp"
#include "fabricd/ctl/doctor/doctor_command.hpp"
#include "fabricd/ctl/environment.hpp"
#include "fabricd/ctl/host_commands.hpp"
#include "fabricd/ctl/job_commands.hpp"
#include "fabricd/ctl/operator_commands.hpp"
#include "fabricd/ctl/shard_commands.hpp"
#include "fabricd/ctl/slurm_commands.hpp"
#include "fabricd/ctl/trace_command.hpp"
#include "fabricd/ctl/tune_command.hpp"
#include "fabricd/ctl/vgpu_commands.hpp"

namespace fabricd {

namespace {

#define FIELD(member)                   \
    [](CtlOptions & options) -> auto& { \
        return options.member;          \
    }

constexpr double kHour = 3600;
constexpr double kDay = 24 * kHour;

// Up to a week: seconds as milliseconds stay far from an overflow.
CtlArgument wait_option(const char* help) {
    return {"--wait", help, CtlSeconds{FIELD(wait), 7 * kDay}, "SECONDS"};
}

CtlArgument last_option() {
    return {"--last", "The newest N (default 20); 0: all there are", CtlWhole{FIELD(last), true},
            "N"};
}

// Of commands that do without a daemon; the others have it anyway.
CtlArgument json_option() {
    return {"--json", "Print JSON", CtlFlag{FIELD(json)}};
}

std::vector<CtlCommand> view_commands() {
    return {
        {"status", "The daemon and its pool in a few lines", View::kStatus},
        {"pools", "The pool: where it is and how full", View::kPools},
        {"arenas", "The arenas: one per job", View::kArenas},
        {"regions",
         "The regions and tensors inside arenas",
         View::kRegions,
         {{"--arena",
           "Only those of the arena with this id",
           CtlWhole{FIELD(arena_id)},
           "ID",
           {},
           "fabricctl arenas --json 2>/dev/null | grep -o '\"id\":[0-9]*' | cut -d: -f2"}}},
        {"sessions", "The attached processes", View::kSessions},
        {"groups", "The groups of ranks, and which of them died", View::kGroups},
        {"devices",
         "The devices: speed, memory, vGPU quota and what is used",
         View::kDevices,
         {{"--file", "Check this device file and show it; works without a daemon",
           CtlText{FIELD(file)}, "PATH"}}},
        {"shards", "The shards: where they are, and which of them move", View::kShards},
        {"waiting", "The operations in which ranks wait, and the ranks that are late",
         View::kWaiting},
        {"top", "Training rates, load, arenas, sessions and groups, again and again", View::kTop},
    };
}

std::vector<CtlCommand> trace_commands() {
    return {
        {"trace",
         "What the ranks of a job do, into a file for ui.perfetto.dev or chrome://tracing",
         trace_job,
         {{"--job",
           "The name of its arena (default: of the only one)",
           CtlText{FIELD(subject)},
           "NAME",
           {},
           "fabricctl arenas --json 2>/dev/null | grep -o '\"name\":\"[^\"]*' | cut -d'\"' -f4"},
          {"--seconds", "How long (default 5)", CtlSeconds{FIELD(trace_seconds), kHour, 0.001},
           "SECONDS"},
          {"-o,--output",
           "File to write, complete or not at all (default trace.json); what is there is replaced",
           CtlText{FIELD(output)}, "PATH"}}},
    };
}

std::vector<CtlCommand> measuring_commands() {
    return {
        {"dashboard",
         "A live page of the daemon for a browser of this host (Ctrl-C ends it)",
         run_dashboard,
         {{"--listen",
           "A loopback address and port, or unix:PATH for a web server in front of it (default "
           "127.0.0.1:8765; port 0: any)",
           CtlText{FIELD(listen)},
           "ADDRESS:PORT",
           {"127.0.0.1:8765", "127.0.0.1:0", "[::1]:8765", "unix:"}},
          {"--host", "A name by which that web server is reached, besides those of the loopback",
           CtlTexts{FIELD(settings)}, "NAME"},
          {"--token-file",
           "The token that the page asks for, 16 to 256 letters, in a file of mode 0600 (default: "
           "a new one each time)",
           CtlText{FIELD(file)}, "PATH"},
          {"--socket", "Admin socket (default: the usual places)", CtlText{FIELD(socket)},
           "PATH"}}},
        {"discover",
         "What this host offers as a pool (works without a daemon)",
         discover_host,
         {json_option()}},
        {"doctor",
         "What is wrong with this host, and what mends it (works without a daemon; exit code 1: "
         "something is)",
         run_doctor,
         {{"--config", "The daemon's configuration file (default: the one it would read)",
           CtlText{FIELD(file)}, "PATH"},
          {"--socket",
           "Admin socket, with the attach socket next to it (default: the usual places)",
           CtlText{FIELD(socket)}, "PATH"},
          json_option()}},
        {"tune",
         "Measure this machine and keep the sizes at which groups change their ways",
         run_tune,
         {{"--ranks", "World sizes to measure (default 2 4)", CtlNumber{FIELD(ranks), 2, 256}, "N"},
          {"--output", "File to write (default: $FABRIC_TUNING, ~/.cache/fabricd/tuning.conf)",
           CtlText{FIELD(output)}, "PATH"},
          {"--emulate",
           "Measure on this machine instead: a preset of fabricd --emulate list, or the path of a "
           "machine file",
           CtlText{FIELD(emulate)},
           "MACHINE",
           {},
           "fabricd --emulate list 2>/dev/null | tail -n +2 | cut -d' ' -f1"},
          {"--slow-motion", "With --emulate: every access takes so many times as long (default 1)",
           CtlNumber{FIELD(slow_motion), 1, 1000}, "N"},
          {"--quick", "One short round: a first idea, not to be kept", CtlFlag{FIELD(quick)}},
          json_option()}},
    };
}

std::vector<CtlCommand> order_commands() {
    return {
        {"migrate",
         "Move a shard while it is read",
         migrate_shard,
         {{"SHARD", "Which one, as fabricctl shards calls it", CtlText{FIELD(move.shard)},
           "ARENA/NAME"},
          {"TARGET",
           "here (another place of its arena), arena:NAME, device:NAME or node:N",
           CtlText{FIELD(move.target)},
           nullptr,
           {"here", "arena:", "device:", "node:"}},
          {"--limit",
           "Copy at most so many bytes per second, with K, M, G (never more than the daemon's "
           "limits.move_bytes_per_second)",
           CtlSize{FIELD(move.bytes_per_second)}, "BYTES/S"}}},
        {"quota",
         "Change what a device or a user may hold",
         set_quota,
         {{"SUBJECT", "A device of the device file, or user:NAME", CtlText{FIELD(subject)}},
          {"BYTES", "The quota, with K, M, G or T; of a user 0: no limit",
           CtlSize{FIELD(quota_bytes)}},
          {"--grace", "Wait so long for holders of more to return it (default 30)",
           CtlSeconds{FIELD(quota_grace), kDay}, "SECONDS"}}},
    };
}

std::vector<CtlCommand> operator_commands() {
    return {
        {"health", "Whether the daemon is well, with the time of a round trip (exit code 1: not)",
         show_health},
        {"events", "The newest lines of the daemon's log", show_events, {last_option()}},
        {"inspect",
         "All that has an id or a name, and what belongs to it",
         inspect,
         {{"ID", "An id, a name, or the pid of a session", CtlText{FIELD(subject)}}}},
        {"evict",
         "End the process of a session, or all of an arena; others get their memory",
         evict,
         {{"SUBJECT", "A session's id, or arena:NAME", CtlText{FIELD(subject)}},
          {"--grace", "From SIGTERM to SIGKILL (default 10)", CtlSeconds{FIELD(grace), kHour},
           "SECONDS"}}},
        {"env",
         "The environment variables that count, and their values (works without a daemon)",
         print_environment,
         {json_option()}},
        {"completion",
         "The script that completes this command line in a shell",
         print_completion,
         {{"SHELL", "bash, zsh or fish", CtlText{FIELD(subject), {"bash", "zsh", "fish"}}}}},
    };
}

std::vector<CtlCommand> decision_commands() {
    return {
        {"decisions", "What the control loop decided", show_decisions, {last_option()}},
        {"why",
         "One decision stage by stage, with its numbers",
         show_why,
         {{"ID", "From fabricctl decisions", CtlWhole{FIELD(decision_id)}}}},
        {"replay",
         "Run a decision journal through the loop again (works without a daemon)",
         run_replay,
         {{"FILE", "Journal: decisions in the state folder of fabricd", CtlText{FIELD(file)}},
          {"--set", "Another value for a key of section [control], such as gain=0.1",
           CtlTexts{FIELD(settings)}, "KEY=VALUE"},
          json_option()}},
    };
}

std::vector<CtlCommand> daemon_commands() {
    return {
        {"drain",
         "Take no new sessions and arenas",
         drain_daemon,
         {{"--off", "Take them again", CtlFlag{FIELD(drain_off)}},
          wait_option("Wait until all sessions have ended, at most this long")}},
        {"hosts",
         "The hosts of the cluster: up, lost or fenced; fence says that a lost one is dead",
         serve_hosts,
         {{"ACTION",
           "fence: HOST is lost, and can write no more: its power is off",
           CtlText{FIELD(host_action), {"fence"}},
           nullptr,
           {"fence"},
           "",
           true},
          {"HOST", "Of fence: which one", CtlText{FIELD(subject)}, nullptr, {}, "", true},
          {"--confirmed", "Of fence: it has been made sure of", CtlFlag{FIELD(confirmed)}}}},
        {"vgpus", "The vGPUs: quota, share and use of their GPUs", show_vgpus},
        // Not 0: that would take the memory of running processes away. (For a user's quota 0 means
        // no limit.)
        {"vgpu-resize",
         "Change the quota of a vGPU as it runs",
         change_vgpu,
         {{"NAME", "The vGPU", CtlText{FIELD(vgpu.name)}},
          {"BYTES", "Its quota of GPU memory: 512MiB, 20GiB",
           CtlSize{FIELD(vgpu.quota_bytes), false}}}},
        {"vgpu-share",
         "Change the compute share of a vGPU as it runs",
         change_vgpu,
         {{"NAME", "The vGPU", CtlText{FIELD(vgpu.name)}},
          {"PERCENT", "Its share of the GPU's time",
           CtlNumber{FIELD(vgpu.share_percent), 1, 100}}}},
        {"shutdown",
         "End the daemon",
         shut_down,
         {wait_option("Wait until it has ended, at most this long (default 10)")}},
    };
}

std::vector<CtlCommand> slurm_commands() {
    const CtlArgument job{"JOB", "The number of the job", CtlWhole{FIELD(slurm.job)}};
    const CtlArgument user{"--user", "Refuse when its arena belongs to another user",
                           CtlWhole{FIELD(slurm.user), true}, "UID"};
    return {
        {"slurm-config", "What Slurm's configuration needs for this daemon's pool",
         print_slurm_config},
        {"slurm-admit",
         "Whether a job of Slurm gets its bytes of the pool (exit code 1: not)",
         admit_slurm_job,
         {job,
          {"BYTES", "What it wants, with K, M, G or T", CtlSize{FIELD(slurm.bytes), false}},
          user}},
        {"slurm-release",
         "End the processes that still have the arena of a job of Slurm",
         release_slurm_job,
         {job,
          {"--grace", "From SIGTERM to SIGKILL (default 1)", CtlSeconds{FIELD(wait), kHour},
           "SECONDS"},
          user}},
    };
}

std::vector<CtlCommand> job_commands() {
    const std::vector<std::string> actions = {"check", "run",   "submit", "list",   "show",
                                              "why",   "logs",  "cancel", "remove", "leaks",
                                              "serve", "agent", "rank"};
    return {
        {"jobs",
         "The jobs of this user: check, run or submit a job file, show, cancel and remove jobs",
         serve_jobs,
         {{"ACTION",
           "check: say what would run where; run: do it now; submit: queue it; list (default), "
           "show, why, logs, cancel: a job; remove: the folders of jobs that have ended; leaks: "
           "what ended jobs left; serve: work through the queue; agent is started by run, rank by "
           "Slurm",
           CtlText{FIELD(job.action), actions},
           nullptr,
           {},
           "",
           true},
          {"WHAT",
           "Of check, run and submit the job file, else a job's number or name",
           CtlText{FIELD(job.what)},
           "WHAT",
           {},
           "",
           true},
          {"MORE", "Of remove: further jobs", CtlTexts{FIELD(job.more)}, "WHAT", {}, "", true},
          {"--older-than", "Of remove: all that ended so long ago, as 12h or 7d",
           CtlTime{FIELD(job.older_than)}, "TIME"},
          {"--state",
           "Of remove --older-than: those alone that ended so: ok, failed, cancelled, with commas "
           "between them",
           CtlList{FIELD(job.outcomes)},
           "STATES",
           {"ok", "failed", "cancelled", "failed,cancelled"}},
          {"--devices", "The devices of this device file instead of the daemon's",
           CtlText{FIELD(job.devices)}, "PATH"},
          {"--without-daemon", "For scripts that don't use the fabric",
           CtlFlag{FIELD(job.without_daemon)}},
          {"--slurm", "Of check and submit: as a job of Slurm", CtlFlag{FIELD(job.is_slurms)}},
          {"--rank", "Of logs: of this rank alone", CtlWhole{FIELD(job.rank), true}, "N"},
          {"--at-once", "Of serve: how many jobs run at a time (default 1)",
           CtlWhole{FIELD(job.at_once)}, "N"},
          {"--resume", "Of run: go on with job WHAT, whose task manager was killed",
           CtlFlag{FIELD(job.is_resumed)}},
          {"--queued", "Of run, for serve: WHAT is the number of a queued job",
           CtlFlag{FIELD(job.is_queued)}},
          {"-f,--follow", "Of logs: until the job has ended", CtlFlag{FIELD(job.follow)}},
          json_option(),
          {"--socket", "Admin socket, as of the other commands", CtlText{FIELD(socket)}, "PATH"},
          {"--timeout", "Until an answer of the daemon has to be there, as of the other commands",
           CtlSeconds{FIELD(timeout), kHour}, "SECONDS"}}},
    };
}

std::vector<CtlCommand> make_commands() {
    std::vector<CtlCommand> commands;
    for (auto* part :
         {view_commands, trace_commands, measuring_commands, order_commands, operator_commands,
          decision_commands, daemon_commands, slurm_commands, job_commands}) {
        for (CtlCommand& command : part()) commands.push_back(std::move(command));
    }
    return commands;
}

#undef FIELD

}  // namespace

const std::vector<CtlCommand>& ctl_commands() {
    static const std::vector<CtlCommand> commands = make_commands();
    return commands;
}

const CtlCommand* find_ctl_command(const std::string& name) {
    const auto& commands = ctl_commands();
    const auto found =
        std::find_if(commands.begin(), commands.end(),
                     [&](const CtlCommand& command) { return command.name == name; });
    return found == commands.end() ? nullptr : &*found;
}

}  // namespace fabricd

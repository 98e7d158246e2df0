#include "fabricd/ctl/job_slurm.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "fabricd/config/job_file.hpp"
#include "fabricd/config/toml_text.hpp"
#include "fabricd/ctl/job_check.hpp"
#include "fabricd/ctl/job_records.hpp"
#include "fabricd/ctl/job_view.hpp"
#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/slurm_tools.hpp"
#include "fabricd/jobs/slurm_job.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

namespace {

// Slurm's own commands give a controller up after some 10 s.
constexpr auto kAskLimit = std::chrono::seconds(10);
constexpr auto kSubmitLimit = std::chrono::seconds(30);
// From the folder to the number that sbatch says; a job without one after that has lost its submit.
constexpr std::int64_t kNumberedWithinMs = 60'000;
constexpr int kTimeLimitCode = 124;
constexpr std::int64_t kClocksDifferMs = 3'000;

struct SlurmOrderedJob {
    std::string text;     // of the job file
    std::string devices;  // of the device file; "": none
    JobSpec spec;
    std::vector<JobNode> nodes;
    JobPlan plan;
};

std::optional<std::string> read_devices(const std::string& path, std::vector<JobDevice>& devices) {
    std::vector<DeviceSpec> specs;
    if (const auto bad = read_device_file(path, specs)) return bad;
    for (const DeviceSpec& spec : specs) devices.push_back(job_device(spec, 0));
    return {};
}

CtlExit read_order(const CtlOptions& options, SlurmOrderedJob& job) {
    const CtlExit read = read_checked_job(options, job.text, job.spec);
    if (read != CtlExit::kOk) return read;
    std::vector<JobDevice> devices;
    const std::string& path = options.job.devices;
    if (!path.empty()) {
        auto bad = read_devices(path, devices);
        if (!bad) bad = read_small_text(path, job.devices);
        if (bad) return fail_job(CtlExit::kUsage, "--devices: " + *bad);
    }
    const auto problem = plan_slurm_job(job.spec, devices, job.nodes, job.plan);
    return problem ? fail_job(CtlExit::kUsage, options.job.what + ": " + *problem) : CtlExit::kOk;
}

SlurmContext context_of(const std::string& folder) {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    SlurmContext context;
    context.folder = folder;
    context.fabricctl = error ? "/usr/bin/fabricctl" : self.string();
    context.directory = std::filesystem::current_path(error);
    return context;
}

/// The jobs of Slurm that have to end well before; one line when one of them can't.
std::optional<std::string> find_behind(const JobSpec& spec, const std::string& jobs,
                                       std::vector<std::string>& behind) {
    const auto records = read_job_records(jobs);
    for (const std::string& word : spec.after) {
        const JobRecord* other = find_record(records, word);
        if (other == nullptr) return "after: there is no job " + word;
        const JobEdge& last = other->edges.back();
        if (last.state == JobPhase::kEnded && last.outcome == JobOutcome::kOk) continue;
        if (last.state == JobPhase::kEnded) {
            return "after: job " + word + " " + name_of(last.outcome);
        }
        if (!other->job.is_slurms) {
            return "after: job " + word + " is not one of Slurm's, and has not ended";
        }
        if (other->slurm.empty()) return "after: job " + word + " has no number of Slurm yet";
        behind.push_back(other->slurm);
    }
    return {};
}

/// A path that sbatch takes as it is: it replaces %j and the like in names of outputs.
bool is_plain_path(const std::string& path) {
    return path.find_first_of("%\\\n") == std::string::npos;
}

bool replace_file(const std::string& path, const std::string& text) {
    const std::string made = path + ".new";
    std::ofstream file(made, std::ios::trunc);
    file << text;
    file.close();
    return file.good() && ::rename(made.c_str(), path.c_str()) == 0;
}

/// "17", or "17;cluster".
std::string number_in(const std::string& text) {
    const std::string number = text.substr(0, text.find_first_not_of("0123456789"));
    return number.size() < 10 ? number : "";
}

CtlExit give_up(const JobFolder& folder, const std::string& why) {
    folder.note({0, JobPhase::kEnded, JobOutcome::kFailed, 125, why});
    return fail_job(CtlExit::kFailed, why);
}

CtlExit call_sbatch(const SlurmOrderedJob& job, const SlurmContext& context,
                    const JobFolder& folder, bool as_json) {
    const auto said = run_slurm_tool(sbatch_words(job.spec, context), kSubmitLimit);
    if (!said.ok()) return give_up(folder, fabricshm::explanation_of(said.error()));
    if (said->code != 0) return give_up(folder, "sbatch: " + said->complaint());
    const std::string number = number_in(said->output);
    if (number.empty()) return give_up(folder, "sbatch said no number of a job");
    // The script writes it too: the job may begin before this line.
    if (!replace_file(folder.path() + "/slurm", number + "\n")) {
        std::fprintf(stderr, "fabricctl: can't write %s/slurm\n", folder.path().c_str());
    }
    std::printf(as_json ? "{\"job\":%u,\"slurm\":%s}\n" : "job %u (slurm %s)\n", folder.number(),
                number.c_str());
    return CtlExit::kOk;
}

/// What Slurm says of one of this user's jobs.
struct SlurmState {
    std::string word;  // "PENDING"
    std::string reason;
};

/// By number; of a heterogeneous job the leader's. Lines are "17|PENDING|Resources".
std::map<std::string, SlurmState> parse_states(const std::string& text) {
    std::map<std::string, SlurmState> states;
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        std::string number;
        SlurmState state;
        std::getline(words, number, '|');
        std::getline(words, state.word, '|');
        std::getline(words, state.reason);
        if (!number.empty()) states[number] = std::move(state);
    }
    return states;
}

/// The edge that follows from Slurm's word; nothing: the job's script writes it.
std::optional<JobEdge> edge_of(const SlurmState& state) {
    const auto failed = [](int code, const std::string& why) {
        return JobEdge{0, JobPhase::kEnded, JobOutcome::kFailed, code, why};
    };
    const std::string said = "Slurm: " + state.word;
    if (state.word == "PENDING") {
        return JobEdge{0, JobPhase::kQueued, JobOutcome::kNone, 0, "Slurm: " + state.reason};
    }
    if (state.word.starts_with("CANCELLED")) {
        return JobEdge{0, JobPhase::kEnded, JobOutcome::kCancelled, 128 + SIGTERM, said};
    }
    if (state.word == "TIMEOUT" || state.word == "DEADLINE") return failed(kTimeLimitCode, said);
    if (state.word == "COMPLETED") return JobEdge{0, JobPhase::kEnded, JobOutcome::kOk, 0, said};
    for (const char* word : {"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "PREEMPTED"}) {
        if (state.word == word) return failed(1, said);
    }
    return {};
}

/// `edge` is what Slurm said when it was asked at `asked_ms`.
void note_state(JobFolder& folder, JobEdge edge, std::int64_t asked_ms) {
    // Two that ask at once write one line.
    if (!folder.lock().ok()) return;
    const auto edges = folder.edges();
    if (edges.empty()) return;
    const JobEdge& last = edges.back();
    // A job that waited when Slurm was asked may run by now, as its script wrote. If that line is
    // older than the question, by the clocks of two hosts, Slurm has put the job back.
    const bool waits_again = edge.state == JobPhase::kQueued && last.state != JobPhase::kQueued;
    const bool is_stale = waits_again && last.unix_ms + kClocksDifferMs > asked_ms;
    if (waits_again) edge.reason = "requeued; " + edge.reason;
    const bool is_known = last.state == edge.state && last.reason.ends_with(edge.reason);
    if (last.state != JobPhase::kEnded && !is_known && !is_stale) folder.note(edge);
}

/// Nothing when Slurm does not answer.
std::optional<std::map<std::string, SlurmState>> ask_states() {
    const auto said =
        run_slurm_tool({"squeue", "--noheader", "--all", "--user=" + std::to_string(::getuid()),
                        "--states=all", "--format=%A|%T|%r"},
                       kAskLimit);
    const std::string why = !said.ok()        ? fabricshm::explanation_of(said.error())
                            : said->code != 0 ? "squeue: " + said->complaint()
                                              : "";
    if (why.empty()) return parse_states(said->output);
    std::fprintf(stderr, "fabricctl: states of Slurm's jobs may be old: %s\n", why.c_str());
    return {};
}

/// Of a job that the controller has forgotten: what accounting has of it, where there is any.
SlurmState ask_accounting(const std::string& number) {
    const auto said = run_slurm_tool({"sacct", "--noheader", "--allocations", "--parsable2",
                                      "--format=State", "--jobs=" + number},
                                     kAskLimit);
    if (!said.ok() || said->code != 0) return {};
    return {said->output.substr(0, said->output.find('\n')), ""};
}

void refresh_job(JobFolder& folder, const std::string& number, std::int64_t begun_ms,
                 const std::map<std::string, SlurmState>& states, std::int64_t asked_ms) {
    if (number.empty()) {
        if (unix_ms_now() - begun_ms < kNumberedWithinMs) return;
        return note_state(folder,
                          {0, JobPhase::kEnded, JobOutcome::kFailed, 125,
                           "its submission was cut off (squeue says whether Slurm has it)"},
                          asked_ms);
    }
    const auto at = states.find(number);
    if (at != states.end()) {
        if (const auto edge = edge_of(at->second)) note_state(folder, *edge, asked_ms);
        return;
    }
    const auto edge = edge_of(ask_accounting(number));
    const JobEdge unknown{0, JobPhase::kEnded, JobOutcome::kFailed, 1,
                          "Slurm does not know job " + number + " any more"};
    note_state(folder, edge.value_or(unknown), asked_ms);
}

// What Slurm does not do of a job file that is right: the same file runs without Slurm, too.
void say_left_out(const JobSpec& spec) {
    const auto say = [](bool is_asked, const char* what) {
        if (is_asked) std::fprintf(stderr, "fabricctl: %s, it is left out\n", what);
    };
    say(spec.priority > 0, "priority: Slurm lets users step back only");
    say(spec.min_ranks != 0 && spec.min_ranks < spec.ranks(),
        "min_ranks: a job of Slurm starts again as a whole");
    say(spec.device_fault == JobDeviceFault::kMove,
        "device_fault = \"move\": a job of Slurm stays on its nodes");
}

}  // namespace

CtlExit show_slurm_check(const CtlOptions& options) {
    SlurmOrderedJob job;
    const CtlExit code = read_order(options, job);
    if (code != CtlExit::kOk) return code;
    SlurmContext context = context_of(jobs_dir() + "/JOB");
    if (const auto bad = find_behind(job.spec, jobs_dir(), context.behind)) {
        return fail_job(CtlExit::kUsage, *bad);
    }
    say_left_out(job.spec);
    const auto words = sbatch_words(job.spec, context);
    const std::string script = slurm_script(job.spec, context);
    if (options.json) {
        std::printf("%s\n", one_line({{"sbatch", words}, {"script", script}}).c_str());
        return CtlExit::kOk;
    }
    std::printf("%s\n%s\n\n%s/slurm.sh:\n%s", plan_text(job.spec, job.nodes, job.plan).c_str(),
                shell_line(words).c_str(), context.folder.c_str(), script.c_str());
    return CtlExit::kOk;
}

CtlExit submit_slurm_job(const CtlOptions& options) {
    SlurmOrderedJob job;
    const CtlExit code = read_order(options, job);
    if (code != CtlExit::kOk) return code;
    std::error_code error;
    const std::string jobs = std::filesystem::absolute(jobs_dir(), error);
    SlurmContext context = context_of("");
    refresh_slurm_jobs(jobs);
    if (const auto bad = find_behind(job.spec, jobs, context.behind)) {
        return fail_job(CtlExit::kUsage, *bad);
    }
    if (!is_plain_path(jobs) || !is_plain_path(context.directory)) {
        return fail_job(CtlExit::kUsage,
                        "sbatch replaces % and \\ in paths: " + jobs + ", " + context.directory);
    }
    say_left_out(job.spec);
    const JobEdge queued{unix_ms_now(), JobPhase::kQueued, JobOutcome::kNone, 0,
                         "submitted to Slurm"};
    auto folder = JobFolder::create(jobs, {{"job.toml", job.text},
                                           {"devices.toml", job.devices},
                                           {"slurm", ""},
                                           {"journal", journal_line(queued)}});
    if (!folder.ok()) return fail_job(CtlExit::kFailed, fabricshm::explanation_of(folder.error()));
    context.folder = folder->path();
    if (!replace_file(context.folder + "/slurm.sh", slurm_script(job.spec, context))) {
        return give_up(*folder, "can't write " + context.folder + "/slurm.sh");
    }
    return call_sbatch(job, context, *folder, options.json);
}

std::optional<std::string> slurm_number(const JobFolder& folder) {
    std::ifstream file(folder.path() + "/slurm");
    if (!file) return {};
    std::string text;
    std::getline(file, text);
    return number_in(text);
}

void refresh_slurm_jobs(const std::string& jobs) {
    std::optional<std::map<std::string, SlurmState>> states;
    const std::int64_t asked_ms = unix_ms_now();
    for (const unsigned number : JobFolder::list(jobs)) {
        auto folder = JobFolder::open(jobs, number);
        const auto slurm = folder.ok() ? slurm_number(*folder) : std::nullopt;
        if (!slurm) continue;
        const auto edges = folder->edges();
        if (edges.empty() || edges.back().state == JobPhase::kEnded) continue;
        // Asked once, when there is one to ask for.
        if (!states && !(states = ask_states())) return;
        refresh_job(*folder, *slurm, edges.front().unix_ms, *states, asked_ms);
    }
}

CtlExit cancel_slurm_job(const JobFolder& folder) {
    const auto edges = folder.edges();
    const std::string name = "job " + std::to_string(folder.number());
    if (!edges.empty() && edges.back().state == JobPhase::kEnded) {
        return fail_job(CtlExit::kFailed, name + " has ended: " + edges.back().reason);
    }
    const std::string number = slurm_number(folder).value_or("");
    if (number.empty()) return fail_job(CtlExit::kFailed, name + " has no number of Slurm yet");
    const auto said = run_slurm_tool({"scancel", number}, kAskLimit);
    if (!said.ok()) return fail_job(CtlExit::kFailed, fabricshm::explanation_of(said.error()));
    return said->code == 0 ? CtlExit::kOk
                           : fail_job(CtlExit::kFailed, "scancel: " + said->complaint());
}

std::optional<std::string> read_slurm_plan(const std::string& folder, JobSpec& spec,
                                           std::vector<JobNode>& nodes, JobPlan& plan) {
    if (auto bad = read_job_file(folder + "/job.toml", spec)) return bad;
    std::vector<JobDevice> devices;
    std::error_code error;
    if (std::filesystem::file_size(folder + "/devices.toml", error) > 0 && !error) {
        if (auto bad = read_devices(folder + "/devices.toml", devices)) return bad;
    }
    return plan_slurm_job(spec, devices, nodes, plan);
}

}  // namespace fabricd

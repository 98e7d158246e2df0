#include "fabricd/jobs/slurm_job.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace fabricd {

namespace {

using std::chrono::minutes;
using Words = std::vector<std::string>;

// What is not known before Slurm has chosen the nodes; the plugin asks there.
constexpr Bytes kAnyBytes = std::numeric_limits<Bytes>::max() / 2;

bool has_option(const JobGroup& group, const char* name) {
    return std::any_of(group.slurm_options.begin(), group.slurm_options.end(),
                       [&](const std::string& word) { return word.starts_with(name); });
}

bool is_pattern(const std::string& constraint) {
    return constraint.find_first_of("*?[]\\") != std::string::npos;
}

/// What the file asks for and Slurm has no way of doing.
std::string impossible(const JobSpec& spec, bool has_devices) {
    if (spec.restart == JobRestart::kRank) {
        return "restart = \"rank\" is not for Slurm, which starts all ranks again";
    }
    if (spec.schedule == JobSchedule::kByResource && !has_devices) {
        return "schedule = \"by-resource\" needs --devices FILE: what the nodes of Slurm have";
    }
    if (spec.splits_by_speed() && !has_devices) {
        return "split = \"weighted\" needs --devices FILE: what the nodes of Slurm have";
    }
    for (const JobGroup& group : spec.groups) {
        if (is_pattern(group.constraint) && group.slurm_options.empty()) {
            return "line " + std::to_string(group.line) + ": constraint \"" + group.constraint +
                   "\" is a pattern, and Slurm has features: add slurm = "
                   "[\"--constraint=FEATURE\"] to the group";
        }
    }
    return "";
}

/// One group on one node, by the plan of a host.
std::optional<std::string> plan_node(const JobSpec& spec, const JobGroup& group,
                                     const JobNode& node, JobPlan& plan) {
    JobSpec part = spec;
    part.strategy = JobStrategy::kAllreduce;
    part.servers = 0;
    part.groups = {group};
    part.groups[0].ranks = group.ranks / group.nodes;
    part.groups[0].pool = group.pool / group.nodes;
    return plan_job(part, {node}, plan);
}

void set_shares(const JobSpec& spec, JobPlan& plan) {
    double all = 0.0;
    for (const PlacedRank& one : plan.ranks) all += one.speed;
    const bool is_even = !spec.splits_by_speed() || !(all > 0.0);
    for (PlacedRank& one : plan.ranks) {
        one.share = is_even ? 1.0 / static_cast<double>(plan.ranks.size()) : one.speed / all;
    }
}

// As plan_job() chooses them on one host.
void set_servers(const JobSpec& spec, JobPlan& plan) {
    if (spec.strategy != JobStrategy::kParameterServer) return;
    plan.servers.resize(plan.ranks.size());
    std::iota(plan.servers.begin(), plan.servers.end(), 0U);
    if (spec.schedule == JobSchedule::kByResource) {
        std::stable_sort(plan.servers.begin(), plan.servers.end(), [&](unsigned a, unsigned b) {
            return plan.ranks[a].speed > plan.ranks[b].speed;
        });
    }
    plan.servers.resize(spec.servers);
    std::sort(plan.servers.begin(), plan.servers.end());
}

/// What all nodes of the job give to its arena: Slurm has one size for all components.
Bytes bytes_of_node(const JobSpec& spec) {
    Bytes most = 0;
    for (const JobGroup& group : spec.groups) {
        most = std::max(most, (group.pool + group.nodes - 1) / group.nodes);
    }
    return most;
}

// Slurm counts whole minutes.
long whole_minutes(Duration length) {
    return static_cast<long>(std::chrono::ceil<minutes>(length).count());
}

void add_component(const JobSpec& spec, const JobGroup& group, Words& words) {
    const unsigned on_each = group.ranks / group.nodes;
    const auto add = [&](const std::string& word) { words.push_back(word); };
    for (const std::string& option : spec.slurm_options) add(option);
    add("--nodes=" + std::to_string(group.nodes));
    add("--ntasks=" + std::to_string(group.ranks));
    add("--ntasks-per-node=" + std::to_string(on_each));
    if (spec.time_limit > Duration{}) {
        add("--time=" + std::to_string(whole_minutes(spec.time_limit)));
    }
    // A user may only step back; what is positive is for an operator.
    if (spec.priority < 0) add("--nice=" + std::to_string(-spec.priority));
    if (spec.pool() != 0) add("--fabric=" + std::to_string(bytes_of_node(spec)));
    const bool has_gres = has_option(group, "--gres") || has_option(group, "--gpus");
    if (group.kind != "cpu" && !has_gres) {
        add("--gres=" + group.kind + ":" + std::to_string(on_each));
    }
    if (!group.constraint.empty() && group.slurm_options.empty()) {
        add("--constraint=" + group.constraint);
    }
    for (const std::string& option : group.slurm_options) add(option);
}

}  // namespace

std::optional<std::string> plan_slurm_job(const JobSpec& spec,
                                          const std::vector<JobDevice>& devices,
                                          std::vector<JobNode>& nodes, JobPlan& plan) {
    const std::string problem = impossible(spec, !devices.empty());
    if (!problem.empty()) return problem;
    std::vector<JobNode> all;
    JobPlan whole;
    for (unsigned number = 0; number < spec.groups.size(); ++number) {
        const JobGroup& group = spec.groups[number];
        JobNode node{"", kAnyBytes, devices};
        JobGroup wanted = group;
        if (devices.empty()) {
            node.devices.push_back({"", group.kind, 1.0, kAnyBytes});
            wanted.constraint.clear();  // a feature of nodes, which Slurm knows
        }
        JobPlan part;
        if (const auto bad = plan_node(spec, wanted, node, part)) return bad;
        for (unsigned at = 0; at < group.nodes; ++at) {
            node.name = "slurm-" + std::to_string(number) + "." + std::to_string(at);
            PlacedAgent agent{number, all.size(), {}};
            for (PlacedRank one : part.ranks) {
                one.group = number;
                one.node = all.size();
                agent.ranks.push_back(static_cast<unsigned>(whole.ranks.size()));
                whole.ranks.push_back(one);
            }
            whole.agents.push_back(std::move(agent));
            all.push_back(node);
        }
    }
    set_shares(spec, whole);
    set_servers(spec, whole);
    nodes = std::move(all);
    plan = std::move(whole);
    return {};
}

std::vector<std::string> sbatch_words(const JobSpec& spec, const SlurmContext& context) {
    Words words = {"sbatch", "--parsable", "--export=ALL", "--job-name=" + spec.name,
                   "--output=" + context.folder + "/slurm.log", "--open-mode=append",
                   "--chdir=" + context.directory,
                   // What it waits for is over: it would never begin, and wait for ever.
                   "--kill-on-invalid-dep=yes",
                   spec.max_restarts > 0 ? "--requeue" : "--no-requeue"};
    if (!context.behind.empty()) {
        std::string behind = "--dependency=afterok";
        for (const std::string& job : context.behind) behind += ":" + job;
        words.push_back(behind);
    }
    for (const JobGroup& group : spec.groups) {
        if (&group != &spec.groups.front()) words.emplace_back(":");
        add_component(spec, group, words);
    }
    words.push_back(context.folder + "/slurm.sh");
    return words;
}

std::string slurm_script(const JobSpec& spec, const SlurmContext& context) {
    const std::string limit = std::to_string(spec.max_restarts);
    const std::size_t last = spec.groups.size() - 1;
    const std::string components = last == 0 ? "" : "--het-group=0-" + std::to_string(last) + " ";
    const std::string alarm =
        spec.alarm_command.empty()
            ? ""
            : "    FABRIC_ALARM=\"job $job: a rank failed with code $code\" timeout 60 sh -c " +
                  shell_quoted(spec.alarm_command) + "\n";
    const std::string label = " (" + spec.name + ")";
    return "#!/bin/sh\n"
           "# Made by fabricctl jobs submit --slurm. sbatch runs it on the first node of the job.\n"
           "folder=" +
           shell_quoted(context.folder) + "\njob=\"${folder##*/}\"" + shell_quoted(label) +
           "\n"
           "note() { printf '%s %s\\n' \"$(date +%s%3N)\" \"$*\" >> \"$folder/journal\"; }\n"
           "printf '%s\\n' \"$SLURM_JOB_ID\" > \"$folder/slurm\"\n"
           "export FABRIC_JOB_HEAD=\"$SLURMD_NODENAME\"\n"
           "getent hosts \"$FABRIC_JOB_HEAD\" > /dev/null || FABRIC_JOB_HEAD=127.0.0.1\n"
           "note \"placed job $SLURM_JOB_ID of Slurm, on $FABRIC_JOB_HEAD and others\"\n"
           "attempt=0\n"
           // After a requeue ranks have started before, too.
           "before=$((${SLURM_RESTART_COUNT:-0} * (" +
           limit +
           " + 1)))\n"
           "while :; do\n"
           "    export FABRIC_JOB_ATTEMPT=$((before + attempt))\n"
           "    note \"running job $SLURM_JOB_ID of Slurm\"\n"
           "    srun --kill-on-bad-exit=1 --distribution=block " +
           components + shell_quoted(context.fabricctl) +
           " jobs rank \"$folder\"\n"
           "    code=$?\n"
           "    [ $code -eq 0 ] && break\n" +
           alarm + "    [ $attempt -ge " + limit +
           " ] && break\n"
           "    attempt=$((attempt + 1))\n"
           "    note \"repairing a rank failed with code $code; all are started again ($attempt "
           "of " +
           limit +
           ")\"\n"
           "done\n"
           "if [ $code -eq 0 ]; then\n"
           "    note 'ended ok 0 all ranks have ended'\n"
           "else\n"
           "    note \"ended failed $code a rank failed with code $code (slurm.log)\"\n"
           "fi\n"
           "exit $code\n";
}

std::string shell_quoted(const std::string& word) {
    const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
    std::string quoted = "'";
    for (const char one : word) {
        if (one == '\'') {
            quoted += "'\\''";
        } else {
            quoted += one;
        }
    }
    return quoted + "'";
}

std::string shell_line(const std::vector<std::string>& words) {
    std::string line;
    for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_quoted(word);
    return line;
}

}  // namespace fabricd

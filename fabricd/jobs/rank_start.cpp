#include "fabricd/jobs/rank_start.hpp"

#include <algorithm>
#include <cstdio>
#include <map>

namespace fabricd {

namespace {

std::string joined(const std::vector<std::string>& texts) {
    std::string all;
    for (const std::string& text : texts) all += (all.empty() ? "" : ",") + text;
    return all;
}

std::string decimal(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    return text;
}

using Variables = std::map<std::string, std::string>;

// The names are torchrun's, as fabricrun sets them.
void set_ranks(const JobPlan& plan, unsigned rank, const RankContext& context, Variables& all) {
    const PlacedRank& own = plan.ranks[rank];
    std::vector<std::size_t> nodes;
    unsigned local_world = 0;
    for (const PlacedRank& one : plan.ranks) {
        nodes.push_back(one.node);
        if (one.node == own.node) ++local_world;
    }
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    const auto node = std::lower_bound(nodes.begin(), nodes.end(), own.node) - nodes.begin();
    const std::string world = std::to_string(plan.ranks.size());
    all["RANK"] = all["ROLE_RANK"] = std::to_string(rank);
    all["WORLD_SIZE"] = all["ROLE_WORLD_SIZE"] = world;
    all["LOCAL_RANK"] = std::to_string(own.local_rank);
    all["LOCAL_WORLD_SIZE"] = std::to_string(local_world);
    all["GROUP_RANK"] = std::to_string(node);
    all["GROUP_WORLD_SIZE"] = std::to_string(nodes.size());
    all["MASTER_ADDR"] = context.master_address;
    all["MASTER_PORT"] = std::to_string(context.master_port);
    all["TORCHELASTIC_RESTART_COUNT"] = std::to_string(context.attempt);
    all["TORCHELASTIC_RUN_ID"] = context.run;
    // As many threads per rank as cores would make them fight for the cores.
    if (local_world > 1 && all.count("OMP_NUM_THREADS") == 0) {
        all["OMP_NUM_THREADS"] = std::to_string(std::max(1U, context.cores / local_world));
    }
}

void set_job(const JobSpec& spec, const JobPlan& plan, unsigned rank, const RankContext& context,
             Variables& all) {
    const PlacedRank& own = plan.ranks[rank];
    std::vector<std::string> shares, servers;
    for (const PlacedRank& one : plan.ranks) shares.push_back(decimal(one.share));
    for (const unsigned server : plan.servers) servers.push_back(std::to_string(server));
    const bool is_server = spec.strategy == JobStrategy::kParameterServer;
    all["FABRIC_JOB"] = std::to_string(context.job);
    all["FABRIC_JOB_NAME"] = spec.name;
    all["FABRIC_JOB_GROUP"] = std::to_string(own.group);
    all["FABRIC_JOB_KIND"] = spec.groups[own.group].kind;
    all["FABRIC_JOB_SHARES"] = joined(shares);
    all["FABRIC_JOB_STRATEGY"] = is_server ? "parameter-server" : "allreduce";
    if (is_server) {
        all["FABRIC_JOB_SERVERS"] = joined(servers);
        all["FABRIC_JOB_STALENESS"] = std::to_string(spec.staleness);
    }
    if (!spec.data.path.empty()) all["FABRIC_JOB_DATA"] = spec.data.path;
    if (!spec.data.cache.empty()) all["FABRIC_JOB_CACHE"] = spec.data.cache;
    if (spec.data.pass_on > 0.0) all["FABRIC_JOB_PASS_ON"] = decimal(spec.data.pass_on);
}

void set_fabric(const JobSpec& spec, const std::string& device, const RankContext& context,
                Variables& all) {
    if (context.attach_socket.empty()) return;
    all["FABRIC_SOCKET"] = context.attach_socket;
    all["FABRIC_ARENA"] = context.arena;
    if (spec.pool() != 0) all["FABRIC_ARENA_BYTES"] = std::to_string(spec.pool());
    if (!device.empty()) all["FABRIC_DEVICE"] = device;
}

}  // namespace

std::vector<std::string> rank_arguments(const JobSpec& spec, const RankContext& context) {
    std::vector<std::string> words = {context.interpreter};
    if (!spec.interpreter.empty()) {
        words.insert(words.end(), {"-m", "fabricshm._run_script"});
        if (spec.override_backend) words.emplace_back("--override-backend");
        if (spec.wrap) {
            words.insert(words.end(),
                         {"--wrap", "--wrap-reduction", spec.wrap_sums ? "sum" : "mean"});
            if (spec.strategy == JobStrategy::kParameterServer) {
                words.insert(words.end(), {"--staleness", std::to_string(spec.staleness)});
            }
        }
        words.push_back(spec.script);
    }
    words.insert(words.end(), spec.arguments.begin(), spec.arguments.end());
    return words;
}

std::vector<std::string> rank_environment(const JobSpec& spec, const std::vector<JobNode>& nodes,
                                          const JobPlan& plan, unsigned rank,
                                          const RankContext& context,
                                          const std::vector<std::string>& base) {
    Variables all;
    for (const std::string& one : base) {
        const std::size_t end = one.find('=');
        // What a job of an outer fabric or scheduler left is not this job's. The folder of jobs is
        // by what `jobs leaks` knows processes as of its own.
        const bool is_jobs = one.starts_with("FABRIC_JOB") && !one.starts_with("FABRIC_JOBS_DIR=");
        const bool is_stale = is_jobs || one.starts_with("FABRIC_DEVICE=");
        if (end != std::string::npos && !is_stale) all[one.substr(0, end)] = one.substr(end + 1);
    }
    const PlacedRank& own = plan.ranks[rank];
    set_ranks(plan, rank, context, all);
    set_job(spec, plan, rank, context, all);
    set_fabric(spec, nodes[own.node].devices[own.device].name, context, all);
    all["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(spec.max_restarts);
    if (!context.python_packages.empty()) {
        std::string& path = all["PYTHONPATH"];
        path = context.python_packages + (path.empty() ? "" : ":" + path);
    }
    // Its output is a pipe, and logs are read while it runs.
    all.try_emplace("PYTHONUNBUFFERED", "1");
    std::vector<std::string> environment;
    for (const auto& [name, value] : all) environment.push_back(name + "=" + value);
    return environment;
}

}  // namespace fabricd

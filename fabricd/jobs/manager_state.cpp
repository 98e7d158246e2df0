#include "fabricd/jobs/manager_state.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "libfabricshm/os/fd.hpp"

namespace fabricd {

using jobs::v1::ManagerState;

namespace {

constexpr std::uintmax_t kMaxStateBytes = 16 << 20;

std::vector<PlacedAgent> agents_of(const std::vector<PlacedRank>& ranks) {
    std::vector<PlacedAgent> agents;
    for (unsigned rank = 0; rank < ranks.size(); ++rank) {
        const PlacedRank& one = ranks[rank];
        const bool is_next =
            agents.empty() || agents.back().group != one.group || agents.back().node != one.node;
        if (is_next) agents.push_back({one.group, one.node, {}});
        agents.back().ranks.push_back(rank);
    }
    return agents;
}

}  // namespace

void save_state(const std::string& path, const ManagerState& state) noexcept {
    const std::string text = state.SerializeAsString();
    const std::string made = path + ".new";
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
    const fabricshm::Fd file(::open(made.c_str(), kFlags, 0600));
    const auto written = file ? ::write(file.get(), text.data(), text.size()) : -1;
    // The one before would have another manager go on from where the job is not any more.
    const bool is_whole = written == static_cast<ssize_t>(text.size()) &&
                          std::rename(made.c_str(), path.c_str()) == 0;
    if (!is_whole) ::unlink(path.c_str());
}

std::optional<ManagerState> load_state(const std::string& path) {
    std::error_code error;
    if (std::filesystem::file_size(path, error) > kMaxStateBytes || error) return {};
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    ManagerState state;
    if (!file || !state.ParseFromString(text.str())) return {};
    return state;
}

std::optional<JobEdge> decided_end(const JobFolder& folder) {
    const auto edges = folder.edges();
    if (edges.empty() || edges.back().state != JobPhase::kEnding) return {};
    const auto state = load_state(folder.state_path());
    if (!state || !state->has_ending()) return {};
    JobEdge end{0, JobPhase::kEnded, JobOutcome::kNone, state->ending().code(),
                state->ending().reason()};
    for (const JobOutcome one : {JobOutcome::kOk, JobOutcome::kFailed, JobOutcome::kCancelled}) {
        if (state->ending().outcome() == name_of(one)) end.outcome = one;
    }
    if (end.outcome == JobOutcome::kNone) return {};
    return end;
}

void put_plan(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan,
              ManagerState& state) {
    for (const JobNode& node : nodes) {
        auto& one = *state.add_nodes();
        one.set_name(node.name);
        one.set_pool_free(node.pool_free);
        for (const JobDevice& device : node.devices) {
            auto& to = *one.add_devices();
            to.set_name(device.name);
            to.set_kind(device.kind);
            to.set_speed(device.speed);
            to.set_free(device.free);
            to.set_fault(device.fault);
        }
    }
    for (const JobGroup& group : spec.groups) {
        auto& one = *state.add_groups();
        one.set_ranks(group.ranks);
        one.set_pool(group.pool);
    }
    for (const PlacedRank& rank : plan.ranks) {
        auto& one = *state.add_ranks();
        one.set_group(rank.group);
        one.set_node(rank.node);
        one.set_device(rank.device);
        one.set_local_rank(rank.local_rank);
        one.set_speed(rank.speed);
        one.set_share(rank.share);
    }
    for (const unsigned server : plan.servers) state.add_servers(server);
}

bool take_plan(const ManagerState& state, JobSpec& spec, std::vector<JobNode>& nodes,
               JobPlan& plan) {
    if (state.groups_size() != static_cast<int>(spec.groups.size())) return false;
    for (std::size_t group = 0; group < spec.groups.size(); ++group) {
        const auto& one = state.groups(static_cast<int>(group));
        if (one.ranks() > spec.groups[group].ranks) return false;
        spec.groups[group].ranks = one.ranks();
        spec.groups[group].pool = one.pool();
    }
    nodes.clear();
    for (const auto& node : state.nodes()) {
        nodes.push_back({node.name(), node.pool_free(), {}});
        for (const auto& device : node.devices()) {
            nodes.back().devices.push_back(
                {device.name(), device.kind(), device.speed(), device.free(), device.fault()});
        }
    }
    plan = {};
    for (const auto& rank : state.ranks()) {
        const bool is_there = rank.group() < spec.groups.size() && rank.node() < nodes.size() &&
                              rank.device() < nodes[rank.node()].devices.size();
        if (!is_there) return false;
        plan.ranks.push_back({rank.group(), rank.node(), rank.device(), rank.local_rank(),
                              rank.speed(), rank.share()});
    }
    plan.agents = agents_of(plan.ranks);
    plan.servers.assign(state.servers().begin(), state.servers().end());
    const bool is_whole = !plan.ranks.empty() && plan.ranks.size() == spec.ranks() &&
                          std::all_of(plan.servers.begin(), plan.servers.end(),
                                      [&](unsigned one) { return one < plan.ranks.size(); });
    if (is_whole) plan.manager_node = plan.ranks.front().node;
    return is_whole;
}

}  // namespace fabricd

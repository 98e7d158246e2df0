#include "fabricd/jobs/job_roster.hpp"

#include <algorithm>

namespace fabricd {

using jobs::v1::ManagerState;

void JobRoster::assign(const JobPlan& plan) {
    ranks.resize(plan.ranks.size());
    for (const PlacedAgent& placed : plan.agents) {
        auto agent = std::find_if(agents.begin(), agents.end(), [&](const auto& one) {
            return one.group == placed.group && one.node == placed.node;
        });
        if (agent == agents.end()) {
            agent = agents.emplace(agents.end());
            agent->group = placed.group;
            agent->node = placed.node;
        }
        const auto number = static_cast<std::size_t>(agent - agents.begin());
        for (const unsigned rank : placed.ranks) ranks[rank].agent = number;
    }
}

bool JobRoster::any_live() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const auto& one) { return one.is_live; });
}

bool JobRoster::any_agent() const {
    return std::any_of(agents.begin(), agents.end(), [](const auto& one) { return one.is_alive; });
}

bool JobRoster::all_done() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& one) { return one.is_done; });
}

bool JobRoster::all_started() const {
    return std::all_of(ranks.begin(), ranks.end(),
                       [](const auto& one) { return one.is_started || one.is_done; });
}

bool JobRoster::all_registered() const {
    return std::all_of(agents.begin(), agents.end(),
                       [](const auto& one) { return one.is_registered || one.ordered.empty(); });
}

bool JobRoster::has_ranks(std::size_t agent) const {
    return std::any_of(ranks.begin(), ranks.end(),
                       [&](const auto& one) { return one.agent == agent; });
}

std::vector<unsigned> JobRoster::lose(std::size_t agent) {
    std::vector<unsigned> lost;
    for (unsigned rank = 0; rank < ranks.size(); ++rank) {
        if (ranks[rank].agent == agent && ranks[rank].is_live) lost.push_back(rank);
    }
    agents[agent].ordered.clear();
    for (const unsigned rank : lost) ranks[rank].is_live = false;
    return lost;
}

void JobRoster::put(ManagerState& state) const {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        auto& one = *state.mutable_ranks(static_cast<int>(rank));
        one.set_attempt(ranks[rank].attempt);
        one.set_restarts(ranks[rank].restarts);
        one.set_is_done(ranks[rank].is_done);
    }
    for (const ManagedAgent& agent : agents) {
        auto& one = *state.add_agents();
        one.set_group(agent.group);
        one.set_node(agent.node);
    }
}

void JobRoster::take(const ManagerState& state) {
    ranks.clear();
    for (const auto& rank : state.ranks()) {
        ManagedRank& one = ranks.emplace_back();
        one.attempt = rank.attempt();
        one.restarts = rank.restarts();
        one.is_done = rank.is_done();
        one.is_live = !rank.is_done();
    }
    agents.clear();
    for (const auto& agent : state.agents()) {
        ManagedAgent& one = agents.emplace_back();
        one.group = agent.group();
        one.node = agent.node();
    }
}

}  // namespace fabricd

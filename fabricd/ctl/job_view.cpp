#include "fabricd/ctl/job_view.hpp"

#include <algorithm>
#include <cstdio>

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/table.hpp"

namespace fabricd {

namespace {

const char* strategy_name(const JobSpec& spec) {
    return spec.strategy == JobStrategy::kAllreduce ? "allreduce" : "parameter-server";
}

const char* schedule_name(const JobSpec& spec) {
    return spec.schedule == JobSchedule::kEven ? "even" : "by-resource";
}

bool is_server(const JobPlan& plan, unsigned rank) {
    return std::binary_search(plan.servers.begin(), plan.servers.end(), rank);
}

std::string share_text(double share) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f %%", 100.0 * share);
    return text;
}

}  // namespace

std::string plan_text(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan) {
    std::string text =
        "job " + spec.name + ": " + spec.script + ", " + std::to_string(plan.ranks.size()) +
        " ranks in " + std::to_string(plan.agents.size()) + " groups, " + strategy_name(spec) +
        ", " + schedule_name(spec) + "\ntask manager on " + nodes[plan.manager_node].name +
        "; pool " +
        (spec.pool() == 0 ? "as the daemon gives it" : fabricshm::format_bytes(spec.pool())) + "\n";
    Table table({{"RANK", kRight},
                 {"GROUP", kRight},
                 {"KIND"},
                 {"NODE"},
                 {"DEVICE"},
                 {"SHARE", kRight},
                 {"ROLE"}});
    for (unsigned rank = 0; rank < plan.ranks.size(); ++rank) {
        const PlacedRank& one = plan.ranks[rank];
        const std::string& device = nodes[one.node].devices[one.device].name;
        table.add({std::to_string(rank), std::to_string(one.group), spec.groups[one.group].kind,
                   nodes[one.node].name, device.empty() ? "-" : device, share_text(one.share),
                   is_server(plan, rank) ? "compute, server" : "compute"});
    }
    return text + table.text();
}

std::string plan_json(const JobSpec& spec, const std::vector<JobNode>& nodes, const JobPlan& plan) {
    Json ranks = Json::array();
    for (unsigned rank = 0; rank < plan.ranks.size(); ++rank) {
        const PlacedRank& one = plan.ranks[rank];
        ranks.push_back({{"rank", rank},
                         {"group", one.group},
                         {"kind", spec.groups[one.group].kind},
                         {"node", nodes[one.node].name},
                         {"device", nodes[one.node].devices[one.device].name},
                         {"local_rank", one.local_rank},
                         {"share", one.share},
                         {"server", is_server(plan, rank)}});
    }
    return one_line({{"name", spec.name},
                     {"script", spec.script},
                     {"strategy", strategy_name(spec)},
                     {"schedule", schedule_name(spec)},
                     {"manager", nodes[plan.manager_node].name},
                     {"pool_bytes", spec.pool()},
                     {"ranks", ranks}}) +
           "\n";
}

}  // namespace fabricd

// Query: what membership of many hosts costs, and how soon failures are noticed.

#pragma once

#include "emu/sim/cluster_run.hpp"
#include "emu/sim/report.hpp"

namespace emu {

struct ClusterQuery {
    ClusterScenario scenario;  // its hosts are replaced by each of:
    std::vector<int> hosts;
    int runs = 1;  // with seeds one after the other
};
Report answer_cluster(const ClusterQuery& query);

}  // namespace emu

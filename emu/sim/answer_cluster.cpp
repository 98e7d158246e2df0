#include <algorithm>
#include <cmath>
#include <limits>

#include "emu/sim/cluster_query.hpp"
#include "libfabricshm/client/hosts.hpp"

namespace emu {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Over all runs with one number of hosts.
struct Totals {
    double runs = 0;
    double joining = 0;
    double idle = 0;
    double idle_writes = 0;
    double requests = 0;  // that failures cost, above those of an idle cluster
    double writes = 0;
    double events = 0;
    double deaths = 0;
    double suspect = kNone;  // the longest
    double lost = kNone;
    double fenced = kNone;
    double faults = 0;
    double ended_again = 0;
};

double longest(double before, double now) {
    return std::isnan(before) ? now : std::max(before, now);
}

void add(const ClusterResult& result, double hosts, Totals& totals) {
    ++totals.runs;
    totals.joining += static_cast<double>(result.joining.requests()) / hosts;
    const double idle = static_cast<double>(result.idle.requests()) / result.idle_s;
    totals.idle += idle / hosts;
    totals.idle_writes += static_cast<double>(result.idle.writes) / result.idle_s / hosts;
    totals.requests += static_cast<double>(result.failing.requests()) - idle * result.failing_s;
    totals.writes += static_cast<double>(result.failing.writes);
    totals.events += static_cast<double>(result.failing.events);
    totals.faults += static_cast<double>(result.fault_count);
    totals.ended_again += static_cast<double>(result.ended_again);
    for (const HostLoss& loss : result.losses) {
        if (!loss.is_death) continue;
        ++totals.deaths;
        if (loss.suspecting == result.observers) {
            totals.suspect = longest(totals.suspect, loss.last_suspect - loss.at);
        }
        if (loss.losing == result.observers) {
            totals.lost = longest(totals.lost, loss.last_lost - loss.at);
        }
        if (loss.fencing == result.observers) {
            totals.fenced = longest(totals.fenced, loss.last_fenced - loss.at);
        }
    }
}

std::vector<Cell> row_of(int hosts, double failures, const Totals& totals) {
    // A rank asks its daemon four times a second, and gives a suspect up after that.
    const double given_up =
        totals.suspect + 0.25 +
        std::chrono::duration<double>(fabricshm::HostWatch::kSuspectFor).count();
    return {1.0 * hosts,
            totals.idle / totals.runs,
            totals.idle_writes / totals.runs,
            totals.joining / totals.runs,
            failures > 0 ? totals.requests / failures / hosts : kNone,
            failures > 0 ? totals.writes / failures / hosts : kNone,
            failures > 0 ? totals.events / failures / hosts : kNone,
            totals.suspect,
            given_up,
            totals.lost,
            totals.fenced,
            totals.ended_again,
            totals.faults};
}

}  // namespace

Report answer_cluster(const ClusterQuery& query) {
    Report report;
    report.query = "cluster";
    std::string kinds;
    for (const FailureKind kind : query.scenario.kinds) {
        kinds += (kinds.empty() ? "" : ",") + std::string(name_of_failure(static_cast<int>(kind)));
    }
    report.facts = {{"ttl_s", query.scenario.ttl},
                    {"failures", 1.0 * query.scenario.failures},
                    {"kinds", kinds},
                    {"runs", 1.0 * query.runs},
                    {"seed", static_cast<double>(query.scenario.seed)}};
    report.columns = {"hosts",         "idle_requests", "idle_writes", "join_requests",
                      "fail_requests", "fail_writes",   "fail_events", "suspect_s",
                      "given_up_s",    "lost_s",        "fenced_s",    "ended_again",
                      "faults"};
    for (const int hosts : query.hosts) {
        Totals totals;
        ClusterScenario scenario = query.scenario;
        scenario.hosts = hosts;
        for (int run = 0; run < query.runs; ++run) {
            const ClusterResult result = run_cluster(scenario);
            add(result, hosts, totals);
            report.has_faults = report.has_faults || result.fault_count > 0;
            for (const std::string& fault : result.faults) {
                report.notes.push_back("fault with " + std::to_string(hosts) + " hosts, seed " +
                                       std::to_string(scenario.seed) + ": " + fault);
            }
            ++scenario.seed;
        }
        report.rows.push_back(row_of(hosts, 1.0 * query.runs * scenario.failures, totals));
    }
    report.notes.push_back(
        "idle: requests to etcd of a host in a second; join: of a host; fail: of a host for each "
        "failure, above the idle ones; events: carried to it by its watch; times: from a death "
        "until the last host to which nothing happened knows, the longest of all deaths; given_up: "
        "by groups over several hosts; ended_again: hosts that a fence command ended while they "
        "were up again; faults: what contradicts the rules");
    return report;
}

}  // namespace emu

// An allreduce over several hosts in a simulated network: which bytes cross each host's wire, and
// how long it takes. What is sent follows from the library's own plan (libfabricshm/net).

#pragma once

#include <vector>

#include "emu/sim/report.hpp"
#include "emu/sim/topology.hpp"
#include "libfabricshm/net/allreduce_plan.hpp"

namespace emu {

/// Of each host: one link to a switch that is never the limit. Defaults: 1 Gbit/s, and what was
/// measured over TCP between two network namespaces (docs/perf/2026-11-23-hosts.md).
struct NetworkFigures {
    Rate bandwidth = 125e6;          // each way
    Seconds latency = 10e-6;         // one way
    Seconds message = 2e-6;          // of a rank's processor, for each message that it sends
    double framing = 1514.0 / 1448;  // bytes on the wire for each byte that is sent
    Rate memory = 4e9;               // of a host, for all its ranks: read and write
};

/// Of one operation.
struct NetworkCost {
    double steps = 0;     // that one after the other cross the network
    double messages = 0;  // that the busiest rank sends
    double wire = 0;      // bytes that the busiest host sends, without framing
    Seconds time = 0;
};

/// `ranks[host]` ranks on each host, numbered host by host. At least two hosts. `ring_from`: of
/// HostsPlan.
NetworkCost cost_of_plan(const std::vector<int>& ranks, fabricshm::Bytes bytes,
                         const NetworkFigures& figures, int ring_from = fabricshm::net::kNoRing);

/// A ring over all ranks in their order, as if hosts were not known: the ranks of a host are
/// neighbours, and only its last one sends over the wire.
NetworkCost cost_of_flat_ring(const std::vector<int>& ranks, fabricshm::Bytes bytes,
                              const NetworkFigures& figures);

/// What does an allreduce over hosts cost, against a flat ring?
struct NetworkQuery {
    std::vector<int> hosts;
    std::vector<int> ranks;  // of hosts, in turn
    std::vector<fabricshm::Bytes> sizes;
    NetworkFigures figures;
    int ring_from = fabricshm::net::kNoRing;
};
Report answer_network(const NetworkQuery& query);

}  // namespace emu

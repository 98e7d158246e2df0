// Queries: what the simulator evaluates, each a function from its options to a report.

#pragma once

#include <string>
#include <vector>

#include "emu/sim/report.hpp"
#include "emu/sim/topology.hpp"
#include "emu/sim/topology_preset.hpp"
#include "emu/sim/training.hpp"
#include "fabricd/control/control_config.hpp"
#include "libfabricshm/collective/call.hpp"

namespace emu {

/// How long does an allreduce take, by size and algorithm?
struct AllreduceQuery {
    Topology topology;
    std::vector<fabricshm::Bytes> sizes;
    std::vector<fabricshm::Algorithm> algorithms;
    fabricshm::Trigger trigger = fabricshm::Trigger::kAsync;
    bool in_arena = true;
};
Report answer_allreduce(const AllreduceQuery& query);

/// From which size on is the ring faster than direct, by the number of devices?
struct CrossoverQuery {
    TopologySpec spec;  // its devices are replaced by each of:
    std::vector<int> devices;
    fabricshm::Bytes least = 1 * fabricshm::kKiB;
    fabricshm::Bytes most = 4 * fabricshm::kGiB;
};
Report answer_crossover(const CrossoverQuery& query);

/// What do stragglers do to an allreduce, by algorithm and trigger?
struct StragglerQuery {
    Topology topology;
    fabricshm::Bytes bytes = 64 * fabricshm::kMiB;
    double slow = 4;      // a slow device's engine, a slow link: this many times slower
    Seconds late = 1e-3;  // mean lateness of late ranks
    int runs = 20;        // of each random scenario
    std::uint64_t seed = 1;
};
Report answer_stragglers(const StragglerQuery& query);

/// What bandwidth has the pool to have, so that a model trains with little waiting?
struct BandwidthQuery {
    TopologySpec spec;  // a star: its pool gets the bandwidth that is sought
    std::string model;
    double parameters = 0;
    double bytes_each = 4;
    Seconds step = 0;           // of computing
    double hidden_share = 0.5;  // of the step, during which communication may run unnoticed
    double target_share = 0.1;  // exposed communication / whole step
    fabricshm::Bytes bucket = 25 * fabricshm::kMiB;
    std::vector<int> devices;
};
Report answer_bandwidth(const BandwidthQuery& query);

/// What does the control loop make of stragglers and failures, against an oracle?
struct ControlQuery {
    TopologySpec spec;  // its devices are replaced by each of:
    std::vector<int> devices;
    std::vector<double> speeds = {1};  // of the devices in turn, times 1000 samples/s
    Workload workload;                 // its topology and speeds are made from the above
    TraceSpec trace;
    int traces = 5;
    fabricd::ControlConfig config;
};
Report answer_control(const ControlQuery& query);

/// Known models. A step's length is not theirs: it is operations x samples / what a device does.
struct ModelPreset {
    const char* name;
    double parameters;
    double operations;   // floating-point, of one sample forward and backward
    const char* sample;  // what a sample is
};
const std::vector<ModelPreset>& model_presets();

}  // namespace emu

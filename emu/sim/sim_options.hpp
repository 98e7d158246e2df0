// What fabric-sim is asked on its command line.

#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "emu/sim/cluster_query.hpp"
#include "emu/sim/host_network.hpp"
#include "emu/sim/loading.hpp"
#include "emu/sim/queries.hpp"
#include "emu/sim/training.hpp"
#include "emu/sim/validate.hpp"

namespace emu {

enum class Format { kText, kCsv, kJson };

struct SimOptions {
    std::string command;
    Format format = Format::kText;
    std::string output;  // file; empty: standard output

    // Of every command that has a topology.
    std::string shape = "star";  // or the path of a file
    TopologySpec spec;
    std::vector<int> devices;  // of commands that go through several

    std::vector<fabricshm::Bytes> sizes;
    std::vector<fabricshm::Algorithm> algorithms;
    fabricshm::Trigger trigger = fabricshm::Trigger::kAsync;
    bool outside_arena = false;

    ControlQuery control;
    CrossoverQuery crossover;
    StragglerQuery stragglers;
    BandwidthQuery bandwidth;
    ClusterQuery cluster;
    NetworkQuery network;
    LoadingQuery loading;
    ValidateOptions validate;
    Workload workload;
    TraceSpec trace;
    int traces = 20;
};

/// What to print and the exit code, when the command line is all there is to it (--help, --version,
/// an error in it); nothing when the command is to be run.
struct SimExit {
    int code = 0;
    std::string text;
};

std::optional<SimExit> parse_sim_options(int argc, const char* const* argv, SimOptions& options);

/// The topology that the options mean: a shape of spec.devices, or a file. A line on what is wrong.
std::variant<Topology, std::string> topology_of(const SimOptions& options);

}  // namespace emu

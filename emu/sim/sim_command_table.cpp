// The commands of fabric-sim, one row each. The manual page fabric-sim(1) has the same ones.

#include <algorithm>

#include "emu/sim/sim_command.hpp"
#include "emu/sim/sim_commands.hpp"
#include "emu/sim/sim_flags.hpp"

namespace emu {

namespace {

constexpr SimCommand kCommands[] = {
    {"allreduce", "How long an allreduce takes, by size and algorithm", add_allreduce_flags,
     simulate_allreduce},
    {"crossover", "From which size on the ring beats direct", add_crossover_flags,
     simulate_crossover},
    {"stragglers", "What slow and late devices cost", add_stragglers_flags, simulate_stragglers},
    {"bandwidth", "What pool bandwidth a model needs", add_bandwidth_flags, simulate_bandwidth},
    {"training", "Step by step with stragglers and failures: policies against an oracle",
     add_training_flags, simulate_training},
    {"control", "What fabricd's control loop makes of stragglers and failures", add_control_flags,
     simulate_control},
    {"cluster", "What the membership of many hosts costs, and how it goes through failures",
     add_cluster_flags, simulate_cluster},
    {"network", "An allreduce over several hosts against a ring over all ranks", add_network_flags,
     simulate_network},
    {"data", "Hits and stalls of a job that reads files through a cache, by policy", add_data_flags,
     simulate_data},
    {"validate", "Measure allreduces on this machine and compare", add_validate_flags,
     simulate_validate},
};

}  // namespace

std::span<const SimCommand> sim_commands() noexcept {
    return kCommands;
}

const SimCommand* find_sim_command(const std::string& name) noexcept {
    const auto* const found =
        std::find_if(std::begin(kCommands), std::end(kCommands),
                     [&](const SimCommand& command) { return command.name == name; });
    return found == std::end(kCommands) ? nullptr : found;
}

}  // namespace emu

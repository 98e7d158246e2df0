// What fabric-sim does, once its command line is read.

#pragma once

#include "emu/sim/sim_command.hpp"

namespace emu {

/// Answers what the options ask.
SimOutcome run_sim_command(SimOptions options);

// Of each command. Lists that the command line left out get the command's own defaults.
SimOutcome simulate_allreduce(SimOptions& options);
SimOutcome simulate_crossover(SimOptions& options);
SimOutcome simulate_stragglers(SimOptions& options);
SimOutcome simulate_bandwidth(SimOptions& options);
SimOutcome simulate_training(SimOptions& options);
SimOutcome simulate_control(SimOptions& options);
SimOutcome simulate_cluster(SimOptions& options);
SimOutcome simulate_network(SimOptions& options);
SimOutcome simulate_data(SimOptions& options);
SimOutcome simulate_validate(SimOptions& options);

/// Prints the report in the form that was asked for; false when it could not be written.
bool print_report(const Report& report, const SimOptions& options);

}  // namespace emu

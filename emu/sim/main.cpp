// fabric-sim: simulates collectives on topologies that do not exist here. docs/simulator.md.

#include <cstdio>

#include "emu/sim/sim_commands.hpp"

int main(int argc, char** argv) {
    emu::SimOptions options;
    if (const auto exit = emu::parse_sim_options(argc, argv, options)) {
        std::fputs(exit->text.c_str(), exit->code == 0 ? stdout : stderr);
        return exit->code;
    }
    const auto outcome = emu::run_sim_command(options);
    if (const auto* failure = std::get_if<emu::SimFailure>(&outcome)) {
        std::fprintf(stderr, "fabric-sim: %s\n", failure->line.c_str());
        return failure->code;
    }
    const auto& report = std::get<emu::Report>(outcome);
    if (emu::print_report(report, options)) return report.has_faults ? 1 : 0;
    std::fprintf(stderr, "fabric-sim: the output could not be written%s%s\n",
                 options.output.empty() ? "" : ": ", options.output.c_str());
    return 1;
}

// Does the tuner choose differently under different machines, and is each choice better there?
//
// Tunes under each machine, then times all tables under all machines, taking turns: the default
// table, the one chosen there, and those chosen elsewhere. Prints the tables where they differ and
// the times; with --json one object.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "bench/driver.hpp"
#include "emu/memory/presets.hpp"
#include "libfabricshm/collective/tuner.hpp"

namespace {

using fabricshm::kKiB;
using fabricshm::kMiB;
using fabricshm::LinkImage;
using fabricshm::TuneOptions;
using fabricshm::TuneProbe;
using fabricshm::Tuning;

struct Options {
    std::vector<std::string> machines;
    TuneOptions tune;
    int rounds = 0;
    bool json = false;
};

struct Table {
    std::string name;  // "default", or the machine that it was chosen under
    Tuning tuning;
};

struct Machine {
    std::string name;
    LinkImage links;
    std::vector<std::vector<double>> times;  // [table][probe], nanoseconds
};

// From a barrier's size to what fills the cache, in place and staged.
const std::vector<TuneProbe>& probes() {
    static const std::vector<TuneProbe> list = {
        {8, true},          {2 * kKiB, true},    {8 * kKiB, true},
        {32 * kKiB, true},  {256 * kKiB, true},  {2 * kMiB, true},
        {64 * kKiB, false}, {512 * kKiB, false}, {2 * kMiB, false},
    };
    return list;
}

std::vector<std::string> split(const std::string& list) {
    std::vector<std::string> words;
    std::istringstream text(list);
    for (std::string word; std::getline(text, word, ',');) words.push_back(word);
    return words;
}

Options parse(int argc, char** argv) {
    using bench::option;
    Options options;
    options.machines =
        split(option(argc, argv, "--machines", "dram_local,mhd_niagara2,cxl_switch"));
    options.tune.world = std::stoi(option(argc, argv, "--ranks", "2"));
    options.tune.rounds = std::stoi(option(argc, argv, "--tune-rounds", "3"));
    options.tune.sample =
        std::chrono::microseconds(std::stoll(option(argc, argv, "--sample-us", "10000")));
    options.rounds = std::stoi(option(argc, argv, "--rounds", "5"));
    options.json = option(argc, argv, "--json", "no") == std::string("yes");
    // One rank has no peer to talk to, and no round no median.
    if (options.tune.world < 2 || options.rounds < 1)
        bench::die("--ranks or --rounds is too small");
    return options;
}

Machine machine_of(const std::string& name) {
    const emu::EmulatedMachine* preset = emu::find_preset(name);
    if (preset == nullptr) bench::die("--machines: there is no preset " + name);
    Machine machine{name, {}, {}};
    if (const auto bad = emu::resolve(*preset, machine.links)) bench::die(*bad);
    return machine;
}

// Progress to standard error, so that the tables can be redirected.
Tuning tune(const Options& options, const Machine& machine) {
    TuneOptions wanted = options.tune;
    wanted.links = &machine.links;
    wanted.progress = [&](const std::string& line) {
        std::fprintf(stderr, "%s: %s\n", machine.name.c_str(), line.c_str());
    };
    const auto tuning = fabricshm::measure_tuning(wanted);
    if (!tuning.ok()) bench::die("tune: " + describe(tuning.error()));
    return *tuning;
}

// The median over the rounds of each table and probe; the tables take turns in every round.
// The machine's load changes with the minutes: tables measured one after the other would be
// compared with it.
void time_tables(const Options& options, const std::vector<Table>& tables, Machine& machine) {
    TuneOptions wanted = options.tune;
    wanted.links = &machine.links;
    std::vector<std::vector<std::vector<double>>> samples(
        tables.size(), std::vector<std::vector<double>>(probes().size()));
    for (int round = 0; round < options.rounds; ++round) {
        for (std::size_t i = 0; i < tables.size(); ++i) {
            const auto times = fabricshm::time_probes(wanted, tables[i].tuning, probes());
            if (!times.ok()) bench::die("time: " + describe(times.error()));
            for (std::size_t p = 0; p < probes().size(); ++p) samples[i][p].push_back((*times)[p]);
        }
    }
    for (auto& table : samples) {
        auto& medians = machine.times.emplace_back();
        for (auto& values : table) {
            // The upper one of an even number, by a partial sort.
            const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
            std::nth_element(values.begin(), middle, values.end());
            medians.push_back(*middle);
        }
    }
}

// Of ratios and not of differences: small sizes count as much as large ones.
double geometric_mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += std::log(value);
    return std::exp(sum / static_cast<double>(values.size()));
}

std::string probe_name(const TuneProbe& probe) {
    return fabricshm::format_bytes(probe.bytes) + (probe.in_arena ? "" : " staged");
}

// Only the lines in which the tables differ.
void print_tables(const std::vector<Table>& tables, int world) {
    std::vector<std::vector<std::string>> lines;
    for (const Table& table : tables) {
        std::istringstream text(fabricshm::format_tuning(table.tuning, world));
        auto& own = lines.emplace_back();
        for (std::string line; std::getline(text, line);) own.push_back(line);
    }
    // The tables of one world size have the same keys in the same order.
    for (std::size_t i = 0; i < lines[0].size(); ++i) {
        const bool same = std::all_of(lines.begin(), lines.end(),
                                      [&](const auto& own) { return own[i] == lines[0][i]; });
        if (same) continue;
        const auto equals = lines[0][i].find(" = ");
        std::printf("| %s |", lines[0][i].substr(0, equals).c_str());
        for (const auto& own : lines) std::printf(" %s |", own[i].substr(equals + 3).c_str());
        std::printf("\n");
    }
}

void print_times(const std::vector<Table>& tables, const Machine& machine) {
    std::printf("\nUnder %s, microseconds:\n\n| bytes |", machine.name.c_str());
    for (const Table& table : tables) std::printf(" %s |", table.name.c_str());
    std::printf("\n|---|");
    for (std::size_t i = 0; i < tables.size(); ++i) std::printf("---|");
    std::printf("\n");
    for (std::size_t p = 0; p < probes().size(); ++p) {
        std::printf("| %s |", probe_name(probes()[p]).c_str());
        for (const auto& times : machine.times) std::printf(" %.2f |", times[p] / 1e3);
        std::printf("\n");
    }
    // The first table is the default one.
    const double base = geometric_mean(machine.times[0]);
    std::printf("| time against the default |");
    for (const auto& times : machine.times) {
        std::printf(" %.1f %% |", 100 * geometric_mean(times) / base);
    }
    std::printf("\n");
}

// Raw figures: the conclusion is the reader's.
void print_json(const std::vector<Table>& tables, const std::vector<Machine>& machines) {
    std::printf("{");
    for (const Machine& machine : machines) {
        std::printf("%s\"%s\": {", &machine == &machines.front() ? "" : ", ", machine.name.c_str());
        for (std::size_t i = 0; i < tables.size(); ++i) {
            std::printf("%s\"%s\": [", i == 0 ? "" : ", ", tables[i].name.c_str());
            for (std::size_t p = 0; p < probes().size(); ++p) {
                std::printf("%s%.1f", p == 0 ? "" : ", ", machine.times[i][p]);
            }
            std::printf("]");
        }
        std::printf("}");
    }
    std::printf("}\n");
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    std::vector<Machine> machines;
    for (const auto& name : options.machines) machines.push_back(machine_of(name));
    // First, see print_times().
    std::vector<Table> tables{{"default", fabricshm::machine_tuning(options.tune.world)}};
    for (const Machine& machine : machines)
        tables.push_back({machine.name, tune(options, machine)});
    for (Machine& machine : machines) time_tables(options, tables, machine);
    if (options.json) {
        print_json(tables, machines);
        return 0;
    }
    std::printf("| %d ranks |", options.tune.world);
    for (const Table& table : tables) std::printf(" %s |", table.name.c_str());
    std::printf("\n|---|");
    for (std::size_t i = 0; i < tables.size(); ++i) std::printf("---|");
    std::printf("\n");
    print_tables(tables, options.tune.world);
    for (const Machine& machine : machines) print_times(tables, machine);
    return 0;
}

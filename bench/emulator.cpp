// Does the memory model show what its presets say, and which of them can this machine show at all?
//
// For each preset: the rated latency and bandwidth, and those that ranks measure through the model.
// First as fast as the preset says; where this machine is itself too slow for that, once more in
// the least slow motion in which it is not. Prints a table, or with --json one object.

#include <sys/mman.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "bench/driver.hpp"
#include "emu/memory/figures.hpp"
#include "emu/memory/memory_touch.hpp"
#include "emu/memory/model_check.hpp"
#include "emu/memory/presets.hpp"

namespace {

using emu::CheckPlan;
using emu::Figures;
using emu::TouchMaker;
using fabricshm::LinkClock;
using fabricshm::LinkImage;

struct Options {
    std::string preset;
    CheckPlan plan;
    std::size_t bytes = 0;
    double max_error = 0;  // per cent; 0: only report
    bool json = false;
    bool slow_motion = false;  // also where the preset is out of reach
};

struct Line {
    std::string name;
    int slow_motion = 1;
    Figures rated;     // of the preset itself
    Figures measured;  // slow motion taken out again
    emu::Reach reach;  // at this slow motion
};

// A copy of the machine, so that its preset keeps its own speed.
LinkImage links_of(emu::EmulatedMachine machine, int slow_motion) {
    machine.slow_motion = static_cast<std::uint32_t>(slow_motion);
    LinkImage links;
    if (const auto bad = emu::resolve(machine, links)) bench::die(*bad);
    return links;
}

Line measure(const emu::EmulatedMachine& machine, int slow_motion, const Figures& own,
             const Options& options, const TouchMaker& maker) {
    const LinkImage links = links_of(machine, slow_motion);
    Line line{machine.name, slow_motion, emu::rated_figures(links, 0), {}, {}};
    line.reach = emu::reach_of(own, emu::slowed(line.rated, slow_motion));
    // Ranks touch real memory through the model and the real clock: what is compared is what a job
    // would see.
    const Figures real = emu::check_model(links, options.plan, maker, LinkClock::real());
    line.measured = emu::slowed(real, 1.0 / slow_motion);
    return line;
}

// A figure of 0 limits nothing: there is nothing to compare, and the machine's own is shown.
std::string cell(double rated, double measured, double unit, bool reached) {
    char text[64];
    if (rated == 0) {
        std::snprintf(text, sizeof text, "    own %8.4g          ", measured / unit);
    } else {
        std::snprintf(text, sizeof text, "%7.4g %8.4g %+6.1f %%%s", rated / unit, measured / unit,
                      emu::error_percent(measured, rated), reached ? " " : "!");
    }
    return text;
}

void print(const Line& line) {
    std::printf(
        "%-13s %4d  %s %s  %s %s\n", line.name.c_str(), line.slow_motion,
        cell(line.rated.read_latency_ns, line.measured.read_latency_ns, 1, line.reach.read_latency)
            .c_str(),
        cell(line.rated.write_latency_ns, line.measured.write_latency_ns, 1,
             line.reach.write_latency)
            .c_str(),
        cell(line.rated.read_bandwidth, line.measured.read_bandwidth, 1e9,
             line.reach.read_bandwidth)
            .c_str(),
        cell(line.rated.write_bandwidth, line.measured.write_bandwidth, 1e9,
             line.reach.write_bandwidth)
            .c_str());
}

std::string figures_json(const Figures& figures) {
    char text[256];
    std::snprintf(text, sizeof text,
                  "{\"read_latency_ns\": %.1f, \"write_latency_ns\": %.1f, "
                  "\"read_gb_per_s\": %.3f, \"write_gb_per_s\": %.3f}",
                  figures.read_latency_ns, figures.write_latency_ns, figures.read_bandwidth / 1e9,
                  figures.write_bandwidth / 1e9);
    return text;
}

void print_json(const Figures& own, const std::vector<Line>& lines, int ranks) {
    std::printf("{\"ranks\": %d, \"own\": %s, \"presets\": [", ranks, figures_json(own).c_str());
    for (const Line& line : lines) {
        std::printf(
            "%s{\"name\": \"%s\", \"slow_motion\": %d, \"within_reach\": %s, "
            "\"rated\": %s, \"measured\": %s, \"worst_error_percent\": %.2f}",
            &line == &lines.front() ? "" : ", ", line.name.c_str(), line.slow_motion,
            line.reach.all() ? "true" : "false", figures_json(line.rated).c_str(),
            figures_json(line.measured).c_str(),
            emu::worst_error_percent(line.measured, line.rated));
    }
    std::printf("]}\n");
}

Options parse(int argc, char** argv) {
    using bench::option;
    Options options;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    options.preset = option(argc, argv, "--preset", "all");
    options.plan.ranks = std::stoi(option(argc, argv, "--ranks", std::to_string(cores).c_str()));
    options.plan.latency_operations = std::stoi(option(argc, argv, "--operations", "2001"));
    options.plan.bulk_ns = std::stoull(option(argc, argv, "--sample-ms", "300")) * 1'000'000;
    options.bytes = std::stoull(option(argc, argv, "--bytes", "268435456"));
    options.max_error = std::stod(option(argc, argv, "--max-error", "0"));
    options.json = option(argc, argv, "--json", "no") == std::string("yes");
    options.slow_motion = option(argc, argv, "--slow-motion", "yes") == std::string("yes");
    // At least 64 KiB for each rank: less would stay in its caches, and no memory would be
    // measured.
    const bool sane = options.plan.ranks >= 1 && options.plan.ranks <= fabricshm::kNodeSlots &&
                      options.plan.latency_operations >= 1 &&
                      options.bytes / static_cast<std::size_t>(options.plan.ranks) >= 65536;
    if (!sane) bench::die("--ranks, --operations or --bytes is out of range");
    if (options.preset != "all" && emu::find_preset(options.preset) == nullptr) {
        bench::die("--preset: there is no preset " + options.preset);
    }
    return options;
}

std::vector<Line> measure_all(const Options& options, const Figures& own, const TouchMaker& maker) {
    std::vector<Line> lines;
    for (const auto& machine : emu::presets()) {
        if (options.preset != "all" && options.preset != machine.name) continue;
        // First as the preset is. The factor follows from what this machine can do and what the
        // preset wants.
        lines.push_back(measure(machine, 1, own, options, maker));
        const int factor = emu::slow_motion_for(own, lines.back().rated);
        if (factor > 1 && options.slow_motion) {
            lines.push_back(measure(machine, factor, own, options, maker));
        }
    }
    return lines;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    void* memory =
        mmap(nullptr, options.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) bench::die("out of memory: give --bytes less");
    // A fault would cost more than any of the latencies.
    madvise(memory, options.bytes, MADV_HUGEPAGE);
    // Every page once, before anything is timed.
    std::memset(memory, 1, options.bytes);
    const TouchMaker maker =
        emu::MemoryTouch::maker(static_cast<std::byte*>(memory), options.bytes);
    // This machine by itself, by the same code with links that delay nothing.
    const Figures own = emu::check_model(emu::unslowed(links_of(emu::presets()[0], 1)),
                                         options.plan, maker, LinkClock::real());
    const std::vector<Line> lines = measure_all(options, own, maker);
    munmap(memory, options.bytes);
    if (options.json) {
        print_json(own, lines, options.plan.ranks);
    } else {
        std::printf(
            "This machine by itself, %d ranks: an operation of 64 bytes reads in %.0f ns and "
            "writes in %.0f ns; bulk reads %.1f GB/s, writes %.1f GB/s.\n"
            "Rated, measured, error; \"!\": this machine is too slow for it, \"own\": not "
            "limited.\n\n%-13s %4s  %-25s %-25s  %-25s %s\n",
            options.plan.ranks, own.read_latency_ns, own.write_latency_ns, own.read_bandwidth / 1e9,
            own.write_bandwidth / 1e9, "preset", "slow", "read latency, ns", "write latency, ns",
            "read, GB/s", "write, GB/s");
        for (const Line& line : lines) print(line);
    }
    double worst = 0;
    for (const Line& line : lines) {
        // A preset out of reach is no error of the model: it is counted in its slow motion.
        if (!line.reach.all()) continue;
        worst = std::max(worst, emu::worst_error_percent(line.measured, line.rated));
    }
    if (options.max_error == 0 || worst <= options.max_error) return 0;
    std::fprintf(stderr, "bench_emulator: an error of %.1f %% is above %.1f %%\n", worst,
                 options.max_error);
    return 1;
}

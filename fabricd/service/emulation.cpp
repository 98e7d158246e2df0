#include "fabricd/service/emulation.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "emu/memory/memory_touch.hpp"
#include "emu/memory/model_check.hpp"
#include "fabricd/config/machine_file.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/machine/discovery.hpp"
#include "libfabricshm/machine/far_node.hpp"
#include "libfabricshm/os/mapping.hpp"

namespace fabricd {

using emu::Figures;
using fabricshm::kMiB;

namespace {

// Large enough to be out of most caches, small enough to be made in an instant.
constexpr Bytes kPieceBytes = 64 * kMiB;

// The docs promise a model that is this close to its machine.
constexpr double kPromisedPercent = 10.0;

// "0-3,8", as sysfs lists processors. Whatever is no number ends it: fewer processors then, which
// costs nothing but a choice.
cpu_set_t parse_cpus(const std::string& list) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const char* at = list.c_str();
    while (*at != '\0') {
        char* end = nullptr;
        const long first = std::strtol(at, &end, 10);
        long last = first;
        if (end == at) break;
        if (*end == '-') last = std::strtol(end + 1, &end, 10);
        for (long cpu = first; cpu >= 0 && cpu <= last && cpu < CPU_SETSIZE; ++cpu) {
            CPU_SET(static_cast<std::size_t>(cpu), &set);
        }
        at = *end == ',' ? end + 1 : end;
        if (end != at && *at == '\0') break;
        if (*end != ',' && *end != '\0') break;
    }
    return set;
}

// On a server with a far node the ranks run on the near one, and so does what is measured.
void move_to_near_node(const fabricshm::HostFiles& files) {
    const auto found = fabricshm::discover(files);
    const auto far = fabricshm::find_far_node(found, files);
    if (!far) return;
    for (const auto& node : found.nodes) {
        if (node.id != far->near_node) continue;
        const cpu_set_t set = parse_cpus(node.cpus);
        // Refused inside a smaller set of processors: then it is measured from where we are.
        (void)::sched_setaffinity(0, sizeof set, &set);
    }
}

// `value` and `unit` in the same base unit: 12e9 and 1e9 make "12 GB/s".
std::string with_unit(double value, double unit, const char* name) {
    char text[48];
    std::snprintf(text, sizeof text, "%.3g %s", value / unit, name);
    return text;
}

// Both in one unit, so that people see by how much.
std::string miss(const char* what, double own, double rated, double unit, const char* name) {
    return std::string(what) + " " + with_unit(rated, unit, name) +
           " is out of reach: this memory " + "has " + with_unit(own, unit, name);
}

// Compares the machine with this host's memory and writes down, in words for people, what waiting
// cannot do: it makes memory slower and never faster.
void judge(Emulation& emulation) {
    const int slow = static_cast<int>(emulation.links.slow_motion);
    // In slow motion everything of the machine takes longer, so that more of it is within reach.
    const Figures wanted = emu::slowed(emulation.rated, slow);
    const auto reach = emu::reach_of(emulation.own, wanted);
    auto& said = emulation.warnings;
    const Figures& own = emulation.own;
    if (!reach.read_latency) {
        said.push_back(miss("read latency", own.read_latency_ns, wanted.read_latency_ns, 1, "ns"));
    }
    if (!reach.write_latency) {
        said.push_back(
            miss("write latency", own.write_latency_ns, wanted.write_latency_ns, 1, "ns"));
    }
    if (!reach.read_bandwidth) {
        said.push_back(
            miss("read bandwidth", own.read_bandwidth, wanted.read_bandwidth, 1e9, "GB/s"));
    }
    if (!reach.write_bandwidth) {
        said.push_back(
            miss("write bandwidth", own.write_bandwidth, wanted.write_bandwidth, 1e9, "GB/s"));
    }
    // Against the machine as it is, since slow motion was taken out of `measured`.
    const double worst = emu::worst_error_percent(emulation.measured, emulation.rated);
    if (!reach.all()) {
        said.push_back("with emulate.slow_motion = " +
                       std::to_string(emu::slow_motion_for(own, emulation.rated)) +
                       " all of the machine is within reach");
    } else if (worst > kPromisedPercent) {
        said.push_back("the model missed the machine by " + with_unit(worst, 1, "%") +
                       " just now: other programs were running, or the processor is too slow");
    }
    emulation.summary = std::string(emulation.links.name) + ": " +
                        emu::describe_links(emulation.links) + "; shown to " +
                        with_unit(worst, 1, "%") + (reach.all() ? "" : ", partly out of reach");
}

}  // namespace

ErrorMessage plan_emulation(const Config& config, std::optional<Emulation>& emulation) {
    if (config.emulate.machine.empty()) return {};
    emu::EmulatedMachine machine;
    if (auto bad = find_machine(config.emulate.machine, machine))
        return *bad + " (emulate.machine)";
    machine.slow_motion = static_cast<std::uint32_t>(config.emulate.slow_motion);
    Emulation planned{};
    if (auto bad = emu::resolve(machine, planned.links)) return *bad + " (emulate.machine)";
    planned.rated = emu::rated_figures(planned.links, 0);
    emulation = std::move(planned);
    return {};
}

ErrorMessage calibrate(fabricshm::PoolBackend& pool, const fabricshm::HostFiles& files,
                       Emulation& emulation) {
    // At most half of the pool: a small one has to be enough for this, too.
    const Bytes bytes = std::min(kPieceBytes, pool.totals().capacity / 2 / kMiB * kMiB);
    // Arenas are numbered from 1: this one meets none of them, not even one of a leftover session.
    auto piece = pool.create(0, "calibration", 0, std::max(bytes, kMiB));
    if (!piece.ok()) return error_message_of(piece.error(), "pool.capacity, emulate.machine");
    fabricshm::MapOptions options;
    options.align = std::max(piece->align, piece->huge_page_bytes);
    options.huge_page_bytes = piece->huge_page_bytes;
    auto mapping = fabricshm::Mapping::map(piece->fd, piece->file_offset, piece->bytes, options);
    if (mapping.ok()) {
        // On a thread of its own, whose processors may be chosen without choosing the daemon's.
        std::thread([&] {
            move_to_near_node(files);
            cpu_set_t usable;
            CPU_ZERO(&usable);
            (void)::sched_getaffinity(0, sizeof usable, &usable);
            emu::CheckPlan plan;
            // More than eight ranks would measure the scheduler of a large host, and take longer.
            plan.ranks = std::clamp(CPU_COUNT(&usable), 1, 8);
            // 60 ms per figure, so that all of them take a quarter of a second.
            plan.bulk_ns = 60'000'000;
            auto& clock = fabricshm::LinkClock::real();
            // The pages are there, but not yet in this mapping: a fault is no property of memory.
            std::memset(mapping->data(), 0, mapping->size());
            const auto maker = emu::MemoryTouch::maker(mapping->data(), mapping->size());
            // The same code on the same memory, so that the two differ by the waiting alone.
            emulation.own = emu::check_model(emu::unslowed(emulation.links), plan, maker, clock);
            emulation.measured = emu::slowed(emu::check_model(emulation.links, plan, maker, clock),
                                             1.0 / emulation.links.slow_motion);
        }).join();
    }
    // Also when it could not be mapped: the arena of number 0 must be gone before the daemon's
    // first.
    pool.destroy(0);
    if (!mapping.ok()) return fabricshm::describe(mapping.error()) + " (emulate.machine)";
    judge(emulation);
    return {};
}

// The signed errors say whether the model is too fast or too slow.
void log_emulation(const Emulation& emulation) {
    using fabricshm::log;
    using fabricshm::LogLevel;
    const Figures& rated = emulation.rated;
    const Figures& measured = emulation.measured;
    log(LogLevel::kInfo, "emulating %s", emulation.summary.c_str());
    log(LogLevel::kInfo,
        "the model shows: read %.0f ns (%+.1f %%), %.2f GB/s (%+.1f %%); write %.0f ns (%+.1f %%), "
        "%.2f GB/s (%+.1f %%)",
        measured.read_latency_ns,
        emu::error_percent(measured.read_latency_ns, rated.read_latency_ns),
        measured.read_bandwidth / 1e9,
        emu::error_percent(measured.read_bandwidth, rated.read_bandwidth),
        measured.write_latency_ns,
        emu::error_percent(measured.write_latency_ns, rated.write_latency_ns),
        measured.write_bandwidth / 1e9,
        emu::error_percent(measured.write_bandwidth, rated.write_bandwidth));
    for (const std::string& warning : emulation.warnings) {
        log(LogLevel::kWarning, "emulation: %s", warning.c_str());
    }
}

}  // namespace fabricd

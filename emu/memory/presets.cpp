#include "emu/memory/presets.hpp"

#include <cstdio>

namespace emu {

namespace {

constexpr double kGB = 1e9;

struct Row {
    const char* name;
    std::uint64_t read_ns;
    std::uint64_t write_ns;
    double read_gb;  // 0: as this machine
    double write_gb;
    bool coherent;
    const char* source;
};

// Latency of a 64-byte read. Where only one figure is known for both directions it stands twice;
// where a range is known, `source` gives it. None of the sources has a contention knee.
constexpr Row kRows[] = {
    {"dram_local", 100, 100, 0, 0, true,
     "Hot Chips 34, CXL tutorial: 100 ns; bandwidth of this machine"},
    {"numa_remote", 200, 200, 60, 60, true, "Hot Chips 34, CXL tutorial: 200 ns, 60-120 GB/s"},
    {"cxl_expander", 220, 220, 64, 64, true,
     "Hot Chips 34 and Melody: 170-250 ns with tails to 410 ns, x16: 64 GB/s"},
    {"mhd_niagara2", 640, 640, 10.1, 10.1, false,
     "TraCT: multi-headed Niagara 2.0, 640 ns, 10.1 GB/s"},
    {"cxl_box", 596, 596, 60, 60, true, "Samsung CMM-B: 596 ns, 60 GB/s"},
    {"cxl_switch", 750, 780, 46, 33, false,
     "Beluga: processor reads 750 ns and 46 GB/s, writes 780 ns and 33 GB/s"},
    {"rdma", 4500, 4500, 25, 25, false, "for comparison: 4.5 us, 25-50 GB/s"},
};

// One node, one link, one device: presets say what a way costs, and nothing of how it is built.
EmulatedMachine machine_of(const Row& row) {
    EmulatedMachine machine;
    machine.name = row.name;
    machine.source = row.source;
    machine.coherent = row.coherent;
    machine.nodes = {"host"};
    machine.devices = {{"memory", {}}};
    MachineLink link{"link", "host", "memory", {}};
    link.own.read_latency_ns = row.read_ns;
    link.own.write_latency_ns = row.write_ns;
    link.own.read_bandwidth = row.read_gb * kGB;
    link.own.write_bandwidth = row.write_gb * kGB;
    machine.links = {link};
    return machine;
}

std::vector<EmulatedMachine> all_presets() {
    std::vector<EmulatedMachine> machines;
    for (const Row& row : kRows) machines.push_back(machine_of(row));
    return machines;
}

}  // namespace

const std::vector<EmulatedMachine>& presets() {
    static const std::vector<EmulatedMachine> machines = all_presets();
    return machines;
}

const EmulatedMachine* find_preset(const std::string& name) {
    for (const EmulatedMachine& machine : presets()) {
        if (machine.name == name) return &machine;
    }
    return nullptr;
}

std::string presets_text() {
    const auto wide = [](double gb) {
        char text[32];
        std::snprintf(text, sizeof text, "%.1f", gb);
        return gb == 0 ? std::string("own") : std::string(text);
    };
    char line[256];
    std::snprintf(line, sizeof line, "%-14s %8s %8s %10s %10s %9s  %s\n", "PRESET", "READ ns",
                  "WRITE ns", "READ GB/s", "WRITE GB/s", "COHERENT", "SOURCE");
    std::string text = line;
    // In the order of the rows, which is from near to far.
    for (const Row& row : kRows) {
        std::snprintf(line, sizeof line, "%-14s %8llu %8llu %10s %10s %9s  %s\n", row.name,
                      static_cast<unsigned long long>(row.read_ns),
                      static_cast<unsigned long long>(row.write_ns), wide(row.read_gb).c_str(),
                      wide(row.write_gb).c_str(), row.coherent ? "yes" : "no", row.source);
        text += line;
    }
    return text;
}

}  // namespace emu

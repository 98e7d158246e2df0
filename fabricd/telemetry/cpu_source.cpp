#include "fabricd/telemetry/cpu_source.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

namespace fabricd {

namespace {

// Columns of a processor's line in /proc/stat (proc(5)). Guests are part of user and nice already.
constexpr std::size_t kColumns = 8;  // user nice system idle iowait irq softirq steal
constexpr std::size_t kIdle = 3;
constexpr std::size_t kWaitingForDisk = 4;

// The value in KiB of "Node 0 MemTotal:  123 kB", in bytes; -1 when it is not there.
std::int64_t memory_line(const std::string& text, const std::string& key) {
    const auto at = text.find(key + ":");
    if (at == std::string::npos) return -1;
    std::istringstream rest(text.substr(at + key.size() + 1));
    std::int64_t kib = -1;
    return rest >> kib && kib >= 0 ? kib * 1024 : -1;
}

}  // namespace

CpuSource::CpuSource(fabricshm::HostFiles files, std::vector<fabricshm::Package> packages)
    : files_(std::move(files)), packages_(std::move(packages)), before_(packages_.size()) {}

// Ticks of all processors of each package so far.
std::vector<CpuSource::Ticks> CpuSource::read_ticks() const {
    std::vector<Ticks> all(packages_.size());
    const auto text = files_.text("/proc/stat");
    std::istringstream lines(text.value_or(""));
    for (std::string line; std::getline(lines, line) && line.starts_with("cpu");) {
        std::istringstream words(line.substr(3));
        int processor = -1;
        // The first line is the sum of all and has a blank here.
        if (line.size() < 4 || line[3] == ' ' || !(words >> processor)) continue;
        Ticks ticks;
        for (std::size_t column = 0; column < kColumns; ++column) {
            std::uint64_t value = 0;
            if (!(words >> value)) break;
            ticks.total += value;
            if (column != kIdle && column != kWaitingForDisk) ticks.busy += value;
        }
        // Packages are few, and which processors are in one does not change while we run.
        for (std::size_t i = 0; i < packages_.size(); ++i) {
            if (!std::ranges::binary_search(packages_[i].processors, processor)) continue;
            all[i].busy += ticks.busy;
            all[i].total += ticks.total;
        }
    }
    return all;
}

void CpuSource::add_memory(const fabricshm::Package& package, DeviceSample& device) const {
    for (const int node : package.nodes) {
        const auto text =
            files_.text("/sys/devices/system/node/node" + std::to_string(node) + "/meminfo");
        const std::int64_t total = memory_line(text.value_or(""), "MemTotal");
        const std::int64_t free = memory_line(text.value_or(""), "MemFree");
        // The node has no such file here, as in a container that hides it.
        if (total < 0 || free < 0) continue;
        device.memory_total = std::max<std::int64_t>(device.memory_total, 0) + total;
        device.memory_used =
            std::max<std::int64_t>(device.memory_used, 0) + std::max<std::int64_t>(total - free, 0);
    }
}

void CpuSource::sample(std::int64_t, std::vector<DeviceSample>& devices) {
    const std::vector<Ticks> now = read_ticks();
    for (std::size_t i = 0; i < packages_.size(); ++i) {
        const fabricshm::Package& package = packages_[i];
        DeviceSample device;
        device.name = "cpu" + std::to_string(package.number);
        device.description = package.model;
        device.kind = DeviceKind::kCpu;
        device.numa_node = package.nodes.empty() ? -1 : package.nodes.front();
        device.units = static_cast<int>(package.processors.size());
        const std::uint64_t passed = now[i].total - std::min(before_[i].total, now[i].total);
        const std::uint64_t busy = now[i].busy - std::min(before_[i].busy, now[i].busy);
        // The first sample has nothing to be compared with; a processor that was taken away makes
        // the sums fall once.
        const bool compared = before_[i].total != 0 && passed != 0;
        if (compared) {
            device.busy = std::min(static_cast<double>(busy) / static_cast<double>(passed), 1.0);
        }
        device.stale = now[i].total == 0;
        add_memory(package, device);
        devices.push_back(std::move(device));
    }
    before_ = now;
}

}  // namespace fabricd

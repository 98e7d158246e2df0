#include "libfabricshm/machine/memory_budget.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <sstream>

namespace fabricshm {

namespace {

constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();

/// "MemAvailable:   123 kB" in a /proc/meminfo or "Node 1 MemFree:  123 kB" in a node's.
std::optional<Bytes> meminfo_field(const std::string& text, const std::string& name) {
    const auto at = text.find(name + ":");
    if (at == std::string::npos) return std::nullopt;
    unsigned long long kib = 0;
    if (std::sscanf(text.c_str() + at + name.size() + 1, "%llu", &kib) != 1) return std::nullopt;
    return Bytes{kib} * kKiB;
}

std::string node_meminfo(const HostFiles& files, int node) {
    const std::string path = "/sys/devices/system/node/node" + std::to_string(node) + "/meminfo";
    return files.text(path).value_or("");
}

/// Bytes of page cache in a memory.stat that the group gives back before it hits its limit.
Bytes reclaimable(const HostFiles& files, const std::string& stat, const std::string& name) {
    std::istringstream lines(files.text(stat).value_or(""));
    std::string key;
    Bytes value = 0;
    while (lines >> key >> value) {
        if (key == name) return value;
    }
    return 0;
}

Bytes left(std::optional<std::uint64_t> limit, std::optional<std::uint64_t> used, Bytes cache) {
    // "max" (v2) is no number; v1 says "no limit" with a number near 2^63.
    if (!limit || !used || *limit > kUnlimited / 4) return kUnlimited;
    // Usage has page cache in it, of which the inactive part goes first.
    const Bytes busy = *used - std::min<Bytes>(*used, cache);
    return *limit - std::min<Bytes>(*limit, busy);
}

Bytes left_in_v2(const HostFiles& files, const std::string& group) {
    return left(files.number(group + "/memory.max"), files.number(group + "/memory.current"),
                reclaimable(files, group + "/memory.stat", "inactive_file"));
}

Bytes left_in_v1(const HostFiles& files, const std::string& group) {
    return left(files.number(group + "/memory.limit_in_bytes"),
                files.number(group + "/memory.usage_in_bytes"),
                reclaimable(files, group + "/memory.stat", "total_inactive_file"));
}

/// The smallest of one group and all above it: a limit anywhere up the tree binds.
template <typename LeftIn>
Bytes left_up_the_tree(const HostFiles& files, const std::string& mount, std::string path,
                       LeftIn left_in) {
    Bytes result = left_in(files, mount);
    while (!path.empty() && path != "/") {
        result = std::min(result, left_in(files, mount + path));
        path.erase(path.rfind('/'));
    }
    return result;
}

Bytes left_in_groups(const HostFiles& files) {
    Bytes result = kUnlimited;
    std::istringstream lines(files.text("/proc/self/cgroup").value_or(""));
    // Each line is "id:controllers:path"; version 2 is id 0 with no controllers.
    for (std::string line; std::getline(lines, line);) {
        const auto first = line.find(':');
        const auto second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const auto controllers = line.substr(first + 1, second - first - 1);
        const auto path = line.substr(second + 1);
        if (path.empty() || path[0] != '/') continue;
        if (controllers.empty()) {
            result = std::min(result, left_up_the_tree(files, "/sys/fs/cgroup", path, left_in_v2));
        } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
            result = std::min(result,
                              left_up_the_tree(files, "/sys/fs/cgroup/memory", path, left_in_v1));
        }
    }
    return result;
}

}  // namespace

Bytes available_memory(const HostFiles& files) {
    const auto meminfo = files.text("/proc/meminfo").value_or("");
    const Bytes machine = meminfo_field(meminfo, "MemAvailable").value_or(0);
    return std::min(machine, left_in_groups(files));
}

std::optional<Bytes> available_memory_of_node(const HostFiles& files, int node) {
    const auto text = node_meminfo(files, node);
    const auto free = meminfo_field(text, "MemFree");
    if (!free) return std::nullopt;
    return *free + meminfo_field(text, "Inactive(file)").value_or(0);
}

std::optional<Bytes> total_memory_of_node(const HostFiles& files, int node) {
    return meminfo_field(node_meminfo(files, node), "MemTotal");
}

Bytes transparent_huge_page_bytes(const HostFiles& files) {
    const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
    const Bytes size = files.number(folder + "hpage_pmd_size").value_or(2 * kMiB);
    // Since Linux 6.11 each size has a setting of its own, which may refer to the general one.
    const std::string own = "hugepages-" + std::to_string(size / kKiB) + "kB/shmem_enabled";
    auto setting = files.text(folder + own).value_or("[inherit]");
    if (setting.find("[inherit]") != std::string::npos) {
        setting = files.text(folder + "shmem_enabled").value_or("[never]");
    }
    // The active word is in brackets: "always within_size [advise] never deny force".
    for (const char* on : {"[always]", "[within_size]", "[advise]", "[force]"}) {
        if (setting.find(on) != std::string::npos) return size;
    }
    return 0;
}

}  // namespace fabricshm

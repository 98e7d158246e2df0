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

// "max" (v2) is no number; v1 says "no limit" with a number near 2^63.
Bytes limit_or_unlimited(std::optional<std::uint64_t> limit) {
    return !limit || *limit > kUnlimited / 4 ? kUnlimited : *limit;
}

/// What the two versions call the same things.
struct GroupFiles {
    const char* mount;
    const char* limit;
    const char* used;
    const char* cache;  // the line of memory.stat
};
constexpr GroupFiles kVersion1{"/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
                               "/memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2{"/sys/fs/cgroup", "/memory.max", "/memory.current", "inactive_file"};

Bytes limit_of(const HostFiles& files, const GroupFiles& version, const std::string& group) {
    return limit_or_unlimited(files.number(group + version.limit));
}

Bytes left_in(const HostFiles& files, const GroupFiles& version, const std::string& group) {
    const Bytes limit = limit_of(files, version, group);
    const auto used = files.number(group + version.used);
    if (limit == kUnlimited || !used) return kUnlimited;
    // Usage has page cache in it, of which the inactive part goes first.
    const Bytes cache = reclaimable(files, group + "/memory.stat", version.cache);
    const Bytes busy = *used - std::min<Bytes>(*used, cache);
    return limit - std::min<Bytes>(limit, busy);
}

/// Calls `visit` with a group and all above it: a limit anywhere up the tree binds.
template <typename Visit>
void up_the_tree(const GroupFiles& version, std::string path, const Visit& visit) {
    visit(version, version.mount);
    while (!path.empty() && path != "/") {
        visit(version, version.mount + path);
        path.erase(path.rfind('/'));
    }
}

template <typename Visit>
void each_group(const HostFiles& files, const std::string& process, const Visit& visit) {
    std::istringstream lines(files.text("/proc/" + process + "/cgroup").value_or(""));
    // Each line is "id:controllers:path"; version 2 is id 0 with no controllers.
    for (std::string line; std::getline(lines, line);) {
        const auto first = line.find(':');
        const auto second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const auto controllers = line.substr(first + 1, second - first - 1);
        const auto path = line.substr(second + 1);
        if (path.empty() || path[0] != '/') continue;
        if (controllers.empty()) {
            up_the_tree(kVersion2, path, visit);
        } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
            up_the_tree(kVersion1, path, visit);
        }
    }
}

}  // namespace

Bytes available_memory(const HostFiles& files, const std::string& process) {
    Bytes result = memory_info(files, "MemAvailable").value_or(0);
    each_group(files, process, [&](const GroupFiles& version, const std::string& group) {
        result = std::min(result, left_in(files, version, group));
    });
    return result;
}

std::optional<MemoryLimit> tightest_memory_limit(const HostFiles& files,
                                                 const std::string& process) {
    MemoryLimit tightest;
    bool is_seen = false;
    each_group(files, process, [&](const GroupFiles& version, const std::string& group) {
        // The topmost group has no limit, and so no file for one.
        const bool is_top = group == version.mount && files.exists(group + "/cgroup.procs");
        is_seen = is_seen || is_top || files.exists(group + version.limit);
        const Bytes limit = limit_of(files, version, group);
        if (limit < tightest.bytes) tightest = {group, limit};
    });
    if (!is_seen) return std::nullopt;
    return tightest;
}

std::optional<Bytes> memory_info(const HostFiles& files, const std::string& field) {
    return meminfo_field(files.text("/proc/meminfo").value_or(""), field);
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

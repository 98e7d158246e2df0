#include "libfabricshm/machine/discovery.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "libfabricshm/machine/huge_pages.hpp"
#include "libfabricshm/machine/memory_budget.hpp"
#include "libfabricshm/machine/processors.hpp"

namespace fabricshm {

namespace {

constexpr const char* kNodesFolder = "/sys/devices/system/node";
constexpr const char* kDax = "/sys/bus/dax/devices";
constexpr const char* kCxl = "/sys/bus/cxl/devices";

/// The number behind a prefix: 3 for "node3" and "node"; nothing for "node", "nodes" or "online".
std::optional<int> number_after(const std::string& name, const std::string& prefix) {
    const bool is_like_it = name.rfind(prefix, 0) == 0 && name.size() > prefix.size() &&
                            name.size() < prefix.size() + 9;
    if (!is_like_it) return std::nullopt;
    const std::string digits = name.substr(prefix.size());
    const bool all_digits = std::all_of(digits.begin(), digits.end(),
                                        [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!all_digits) return std::nullopt;
    return std::stoi(digits);
}

/// Numbers of sysfs that may be -1 ("no node").
int node_number(const HostFiles& files, const std::string& path) {
    const auto value = files.number(path);
    return value && *value < 1U << 20 ? static_cast<int>(*value) : -1;
}

std::optional<MemoryRating> rating_of(const HostFiles& files, const std::string& node) {
    const std::string folder = node + "/access0/initiators";
    MemoryRating rating;
    rating.read_latency_ns = files.number(folder + "/read_latency").value_or(0);
    rating.write_latency_ns = files.number(folder + "/write_latency").value_or(0);
    rating.read_bandwidth_mib = files.number(folder + "/read_bandwidth").value_or(0);
    rating.write_bandwidth_mib = files.number(folder + "/write_bandwidth").value_or(0);
    for (const auto& name : files.names(folder)) {
        if (const auto id = number_after(name, "node")) rating.initiators.push_back(*id);
    }
    std::sort(rating.initiators.begin(), rating.initiators.end());
    const bool is_known = rating.read_latency_ns != 0 || rating.read_bandwidth_mib != 0;
    if (!is_known && rating.initiators.empty()) return std::nullopt;
    return rating;
}

MemoryNode read_node(const HostFiles& files, int id) {
    const std::string folder = std::string(kNodesFolder) + "/node" + std::to_string(id);
    MemoryNode node;
    node.id = id;
    node.cpus = files.text(folder + "/cpulist").value_or("");
    node.total = total_memory_of_node(files, id).value_or(0);
    node.available = available_memory_of_node(files, id).value_or(0);
    node.reserved_2mib_free = free_reserved_pages(files, 2 * kMiB, id);
    node.reserved_1gib_free = free_reserved_pages(files, kGiB, id);
    node.rating = rating_of(files, folder);
    return node;
}

// What cannot be read stays unknown: discovery never fails.
void look_inside(DaxInfo& info, const HostFiles& files) {
    const auto device = DaxDevice::open(info.path, files, true);
    if (!device.ok()) return;
    const auto contents = device->contents();
    if (!contents.ok()) return;
    info.contents = *contents;
    if (*contents != DaxContents::kCatalogue) return;
    if (const auto catalogue = device->load(); catalogue.ok()) {
        info.uuid = format_uuid(catalogue->uuid);
        info.arenas = catalogue->entries.size();
        info.device = catalogue->device;
        info.devices = catalogue->devices;
    }
}

DaxInfo read_dax(const HostFiles& files, const std::string& name) {
    const std::string folder = std::string(kDax) + "/" + name;
    DaxInfo info;
    info.name = name;
    info.path = files.root() + "/dev/" + name;
    info.driver = files.link_name(folder + "/driver").value_or("");
    info.bytes = files.number(folder + "/size").value_or(0);
    info.align = files.number(folder + "/align").value_or(0);
    info.numa_node = node_number(files, folder + "/numa_node");
    info.target_node = node_number(files, folder + "/target_node");
    info.is_usable = info.driver == "device_dax" && ::access(info.path.c_str(), R_OK | W_OK) == 0;
    if (info.is_usable) look_inside(info, files);
    return info;
}

CxlMemory read_cxl_memory(const HostFiles& files, const std::string& name) {
    const std::string folder = std::string(kCxl) + "/" + name;
    CxlMemory memory;
    memory.name = name;
    memory.serial = files.text(folder + "/serial").value_or("");
    memory.numa_node = node_number(files, folder + "/numa_node");
    memory.ram = files.number(folder + "/ram/size").value_or(0);
    memory.pmem = files.number(folder + "/pmem/size").value_or(0);
    return memory;
}

/// "ram" or "pmem". Linux 6.1 says it for decoders only, of which the region's first target is one.
std::string mode_of_region(const HostFiles& files, const std::string& folder) {
    if (const auto mode = files.text(folder + "/mode")) return *mode;
    const auto target = files.text(folder + "/target0");
    if (!target || target->empty()) return "";
    return files.text(std::string(kCxl) + "/" + *target + "/mode").value_or("");
}

void read_cxl(const HostFiles& files, Discovery& found) {
    for (const auto& name : files.names(kCxl)) {
        const std::string folder = std::string(kCxl) + "/" + name;
        if (number_after(name, "mem")) {
            found.cxl_memories.push_back(read_cxl_memory(files, name));
        } else if (number_after(name, "region")) {
            found.cxl_regions.push_back({name, files.number(folder + "/resource").value_or(0),
                                         files.number(folder + "/size").value_or(0),
                                         mode_of_region(files, folder)});
        } else if (name.rfind("decoder", 0) == 0) {
            ++found.cxl_decoders;
        }
    }
}

}  // namespace

Discovery discover(const HostFiles& files) {
    Discovery found;
    found.processors = read_processors();
    found.available = available_memory(files);
    found.transparent_huge_page_bytes = transparent_huge_page_bytes(files);
    for (const auto& name : files.names(kNodesFolder)) {
        if (const auto id = number_after(name, "node"))
            found.nodes.push_back(read_node(files, *id));
    }
    std::sort(found.nodes.begin(), found.nodes.end(),
              [](const MemoryNode& a, const MemoryNode& b) { return a.id < b.id; });
    for (const auto& name : files.names(kDax)) found.dax.push_back(read_dax(files, name));
    // After the DAX devices, which say what node their memory has become.
    for (auto& node : found.nodes) {
        node.is_dax_backed =
            std::any_of(found.dax.begin(), found.dax.end(), [&node](const DaxInfo& info) {
                return info.driver == "kmem" && info.target_node == node.id;
            });
    }
    read_cxl(files, found);
    return found;
}

}  // namespace fabricshm

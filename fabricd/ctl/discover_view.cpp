#include "fabricd/ctl/discover_view.hpp"

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/table.hpp"

namespace fabricd {

using fabricshm::BackendChoice;
using fabricshm::Bytes;
using fabricshm::DaxContents;
using fabricshm::DaxInfo;
using fabricshm::Discovery;
using fabricshm::format_bytes;
using fabricshm::MemoryNode;

namespace {

// Unknown is not blank: a device that could not be read must not be taken for empty.
std::string contents_word(const DaxInfo& info) {
    if (!info.contents) return "unknown";
    switch (*info.contents) {
        case DaxContents::kBlank:
            return "blank";
        case DaxContents::kCatalogue:
            if (info.devices == 1) return "catalogue";
            return std::string(info.device == 0 ? "catalogue" : "label") + ", " +
                   std::to_string(info.device + 1) + " of " + std::to_string(info.devices);
        case DaxContents::kDamaged:
            return "damaged catalogue";
        case DaxContents::kForeign:
            return "other data";
    }
    return "unknown";
}

// 0 is "not rated": firmware that says nothing about a node is no slow node.
std::string known(std::uint64_t value) {
    return value == 0 ? "-" : std::to_string(value);
}

// "CPUS none" is what makes a node a candidate for the pool: memory without processors is how CXL
// memory shows itself to Linux.
std::string nodes_text(const Discovery& found) {
    Table table({{"NODE", kRight},
                 {"CPUS"},
                 {"MEMORY", kRight},
                 {"AVAILABLE", kRight},
                 {"2M PAGES", kRight},
                 {"1G PAGES", kRight},
                 {"READ ns", kRight},
                 {"READ MiB/s", kRight},
                 {"BACKED BY"}});
    for (const auto& node : found.nodes) {
        const auto rating = node.rating.value_or(fabricshm::MemoryRating{});
        table.add({std::to_string(node.id), node.cpus.empty() ? "none" : node.cpus,
                   format_bytes(node.total), format_bytes(node.available),
                   format_bytes(node.reserved_2mib_free), format_bytes(node.reserved_1gib_free),
                   known(rating.read_latency_ns), known(rating.read_bandwidth_mib),
                   node.is_dax_backed ? "DAX device" : "-"});
    }
    return table.text();
}

// HOLDS is checked before a format: --format of a device that holds a catalogue loses the arenas of
// the daemon that uses it.
std::string dax_text(const Discovery& found) {
    Table table({{"DEVICE"},
                 {"SIZE", kRight},
                 {"ALIGN", kRight},
                 {"DRIVER"},
                 {"NODE", kRight},
                 {"HOLDS"},
                 {"UUID"}});
    for (const auto& info : found.dax) {
        table.add({info.path, format_bytes(info.bytes), format_bytes(info.align),
                   info.driver.empty() ? "none" : info.driver, std::to_string(info.numa_node),
                   contents_word(info), info.uuid.empty() ? "-" : info.uuid});
    }
    return table.text();
}

// Devices and regions in one table: there are few of them, and they share their columns.
std::string cxl_text(const Discovery& found) {
    Table table({{"CXL"}, {"SIZE", kRight}, {"KIND"}, {"NODE", kRight}, {"SERIAL"}});
    for (const auto& memory : found.cxl_memories) {
        table.add({memory.name, format_bytes(memory.ram + memory.pmem),
                   memory.pmem != 0 ? "memory, persistent" : "memory",
                   std::to_string(memory.numa_node), memory.serial.empty() ? "-" : memory.serial});
    }
    for (const auto& region : found.cxl_regions) {
        table.add({region.name, format_bytes(region.bytes), "region, " + region.mode, "-", "-"});
    }
    return table.text();
}

// rating stays null where there is none: to a program 0 would be a speed.
Json node_json(const MemoryNode& node) {
    Json json{{"id", node.id},
              {"cpus", node.cpus},
              {"total_bytes", node.total},
              {"available_bytes", node.available},
              {"reserved_2mib_free_bytes", node.reserved_2mib_free},
              {"reserved_1gib_free_bytes", node.reserved_1gib_free},
              {"dax_backed", node.is_dax_backed},
              {"rating", nullptr}};
    if (node.rating) {
        json["rating"] = {{"read_latency_ns", node.rating->read_latency_ns},
                          {"write_latency_ns", node.rating->write_latency_ns},
                          {"read_bandwidth_mib_s", node.rating->read_bandwidth_mib},
                          {"write_bandwidth_mib_s", node.rating->write_bandwidth_mib},
                          {"initiators", node.rating->initiators}};
    }
    return json;
}

// numa_node is where the device is attached, target_node the one that its memory would become when
// the kernel took it over.
Json dax_json(const DaxInfo& info) {
    return {{"name", info.name},
            {"path", info.path},
            {"driver", info.driver},
            {"bytes", info.bytes},
            {"align_bytes", info.align},
            {"numa_node", info.numa_node},
            {"target_node", info.target_node},
            {"usable", info.is_usable},
            {"holds", contents_word(info)},
            {"uuid", info.uuid},
            {"device", info.device + 1},
            {"devices", info.devices},
            {"arenas", info.arenas}};
}

Json cxl_json(const Discovery& found) {
    Json memories = Json::array();
    for (const auto& memory : found.cxl_memories) {
        memories.push_back({{"name", memory.name},
                            {"serial", memory.serial},
                            {"numa_node", memory.numa_node},
                            {"ram_bytes", memory.ram},
                            {"pmem_bytes", memory.pmem}});
    }
    Json regions = Json::array();
    for (const auto& region : found.cxl_regions) {
        regions.push_back({{"name", region.name},
                           {"start", region.start},
                           {"bytes", region.bytes},
                           {"mode", region.mode}});
    }
    return {{"memories", memories}, {"regions", regions}, {"decoders", found.cxl_decoders}};
}

}  // namespace

// From what is there to what follows from it: the last lines say which pool `auto` takes and why it
// takes no other.
std::string discover_text(const Discovery& found, const BackendChoice& choice,
                          const std::string& machine) {
    const auto& cpu = found.processors;
    const Bytes huge = found.transparent_huge_page_bytes;
    std::string text;
    text += "processors  " + std::to_string(cpu.packages) + " packages, " +
            std::to_string(cpu.cores) + " cores, " + std::to_string(cpu.threads) +
            " threads, last-level cache " + format_bytes(cpu.last_level_cache) + "\n";
    text += "memory      " + format_bytes(found.available) + " available to this process\n";
    text += "huge pages  " +
            (huge != 0 ? "transparent ones of " + format_bytes(huge) + " for shared memory"
                       : std::string("none for shared memory (transparent_hugepage/shmem_enabled "
                                     "is not advise or always)")) +
            "\n\n" + nodes_text(found);
    if (!found.dax.empty()) text += "\n" + dax_text(found);
    if (!found.cxl_memories.empty() || !found.cxl_regions.empty()) text += "\n" + cxl_text(found);
    text += "\npool.backend = \"auto\" takes " + choice.backend + ": " + choice.why + ".\n";
    for (const auto& line : choice.not_taken) text += "  not " + line + ".\n";
    // The daemon's, if one answers; the host itself emulates nothing.
    if (!machine.empty()) text += "\nThe daemon that runs here emulates " + machine + ".\n";
    return text;
}

std::string discover_json(const Discovery& found, const BackendChoice& choice,
                          const std::string& machine) {
    Json nodes = Json::array();
    for (const auto& node : found.nodes) nodes.push_back(node_json(node));
    Json dax = Json::array();
    for (const auto& info : found.dax) dax.push_back(dax_json(info));
    const auto& cpu = found.processors;
    return one_line({{"processors",
                      {{"packages", cpu.packages},
                       {"cores", cpu.cores},
                       {"threads", cpu.threads},
                       {"last_level_cache_bytes", cpu.last_level_cache}}},
                     {"available_bytes", found.available},
                     {"transparent_huge_page_bytes", found.transparent_huge_page_bytes},
                     {"nodes", nodes},
                     {"dax", dax},
                     {"cxl", cxl_json(found)},
                     {"emulates", machine},
                     {"choice",
                      {{"backend", choice.backend},
                       {"node", choice.node},
                       {"why", choice.why},
                       {"not_taken", choice.not_taken}}}});
}

}  // namespace fabricd

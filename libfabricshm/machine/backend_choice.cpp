#include "libfabricshm/machine/backend_choice.hpp"

#include <utility>

namespace fabricshm {

namespace {

const MemoryNode* best_cpu_less_node(const Discovery& found) {
    const MemoryNode* best = nullptr;
    for (const auto& node : found.nodes) {
        if (!node.cpus.empty() || node.total == 0) continue;
        // As pairs compare: DAX-backed ones first, then by size.
        const auto rank = [](const MemoryNode& n) { return std::pair(n.is_dax_backed, n.total); };
        if (best == nullptr || rank(node) > rank(*best)) best = &node;
    }
    return best;
}

std::string on_node(const MemoryNode& node) {
    std::string text = "node " + std::to_string(node.id) + " has " + format_bytes(node.total) +
                       " and no processors";
    if (node.is_dax_backed)
        text += "; its memory comes from a DAX device, as a CXL expander's does";
    if (node.rating && node.rating->read_latency_ns != 0) {
        text += "; rated " + std::to_string(node.rating->read_latency_ns) + " ns, " +
                std::to_string(node.rating->read_bandwidth_mib) + " MiB/s";
    }
    return text;
}

// In the order in which things can be in the way of a device.
std::string why_not_dax(const DaxInfo& info) {
    std::string text = "dax: " + info.path + " (" + format_bytes(info.bytes) + ") ";
    if (info.driver == "kmem") {
        return text + "is in use as node " + std::to_string(info.target_node) + " (driver kmem)";
    }
    if (info.driver != "device_dax") return text + "has no driver: bind it to device_dax";
    if (!info.is_usable) return text + "may not be opened by this user";
    if (info.contents == DaxContents::kForeign) return text + "holds other data";
    if (info.contents == DaxContents::kDamaged) return text + "holds a damaged catalogue";
    if (!info.contents) return text + "could not be read";
    text += info.contents == DaxContents::kCatalogue ? "holds pool " + info.uuid : "is blank";
    return text +
           "; taken only when asked for (pool.backend = \"dax\"), since using it writes to "
           "it and it can't keep users apart";
}

}  // namespace

BackendChoice choose_backend(const Discovery& discovery) {
    BackendChoice choice;
    if (const MemoryNode* node = best_cpu_less_node(discovery)) {
        choice.backend = "numa";
        choice.node = node->id;
        choice.why = on_node(*node);
        choice.not_taken.push_back("emu: a pool on real pooled memory comes first");
    } else {
        choice.backend = "emu";
        choice.why =
            "there is no memory node without processors, so the pool is emulated in "
            "ordinary memory";
        choice.not_taken.push_back(
            "numa: every memory node has processors; pool.numa_node forces "
            "one");
    }
    for (const auto& info : discovery.dax) choice.not_taken.push_back(why_not_dax(info));
    if (discovery.dax.empty()) choice.not_taken.push_back("dax: there is no DAX device");
    return choice;
}

}  // namespace fabricshm

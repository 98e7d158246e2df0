#include "fabricd/control/stages/allocation_ratio.hpp"

#include "fabricd/control/stages/apportion.hpp"
#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

/// Over the largest; all 1 when no node has any: then this quantity makes no difference.
std::vector<double> over_largest(std::vector<double> values) {
    const double largest = largest_of(values);
    for (double& value : values) value = largest > 0 ? value / largest : 1;
    return values;
}

}  // namespace

std::optional<std::vector<double>> allocation_ratio(std::span<const AllocationNode> nodes,
                                                    double bytes) {
    std::vector<double> data, priority, compute, memory;
    for (const AllocationNode& node : nodes) {
        data.push_back(node.data_demand);
        priority.push_back(node.priority);
        compute.push_back(node.compute_demand);
        memory.push_back(node.free_bytes);
    }
    if (!usable(data) || !usable(priority) || !usable(compute) || !usable(memory)) {
        return std::nullopt;
    }
    const double all = sum_of(memory);
    if (!usable(bytes) || !usable(all) || all <= 0) return std::nullopt;
    data = over_largest(std::move(data));
    priority = over_largest(std::move(priority));
    compute = over_largest(std::move(compute));
    std::vector<double> weights, caps;
    const double whole = bytes > 0 ? bytes : all;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        weights.push_back(std::cbrt(data[i] * priority[i] * compute[i]));
        caps.push_back(std::min(memory[i] / whole, 1.0));
    }
    return fill_under_caps(1, weights, caps);
}

}  // namespace fabricd

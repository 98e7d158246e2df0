#include "fabricd/control/stages/priority.hpp"

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

std::optional<double> priority_of(const PriorityItem& item, double largest_bytes,
                                  const PriorityWeights& weights) {
    const double inputs[] = {item.until_needed_s, item.bytes,   largest_bytes,
                             weights.urgency,     weights.size, weights.tau_s};
    if (!usable(inputs) || weights.tau_s <= 0) return std::nullopt;
    const double both = weights.urgency + weights.size;
    if (!(both > 0) || !std::isfinite(both)) return std::nullopt;
    const double urgency = 1 / (1 + item.until_needed_s / weights.tau_s);
    // Never above 1, also when the item is larger than the largest that the caller knew of.
    const double part = largest_bytes > 0 ? std::min(item.bytes / largest_bytes, 1.0) : 0;
    const double size = weights.large_first ? part : 1 - part;
    return (weights.urgency * urgency + weights.size * size) / both;
}

std::vector<std::size_t> priority_list(std::span<const PriorityItem> items,
                                       const PriorityWeights& weights) {
    double largest = 0;
    for (const PriorityItem& item : items) {
        if (usable(item.bytes)) largest = std::max(largest, item.bytes);
    }
    std::vector<double> priorities(items.size(), 0);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const auto priority = priority_of(items[i], largest, weights);
        if (!priority) continue;
        priorities[i] = *priority;
        order.push_back(i);
    }
    // A total order: the standard library may then sort it in any way and the result is the same.
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        if (priorities[a] != priorities[b]) return priorities[a] > priorities[b];
        return items[a].id < items[b].id;
    });
    return order;
}

}  // namespace fabricd

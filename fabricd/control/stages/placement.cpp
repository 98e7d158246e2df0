#include "fabricd/control/stages/placement.hpp"

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

bool is_sound(const PlacementInput& input) {
    const std::size_t nodes = input.nodes.size();
    if (input.bandwidth.size() != nodes * nodes || !usable(input.bandwidth)) return false;
    for (const PlacementNode& node : input.nodes) {
        if (!usable(node.speed) || !usable(node.free_bytes)) return false;
    }
    for (const PlacedItem& item : input.items) {
        if (!usable(item.bytes) || !usable(item.reads)) return false;
        if (item.home >= nodes || item.reads.size() != nodes) return false;
    }
    return true;
}

/// Reads and places items one after the other, with the memory that is left.
class Placer {
  public:
    Placer(const PlacementInput& input, const PlacementLimits& limits)
        : input_(input), limits_(limits) {
        for (const PlacementNode& node : input.nodes) free_.push_back(node.free_bytes);
    }

    std::optional<Migration> place(const PlacedItem& item) {
        const std::size_t to = best_node(item);
        if (to == item.home) return std::nullopt;
        const double way = bandwidth(item.home, to);
        if (way <= 0) return std::nullopt;
        Migration move{item.id, item.home, to, item.bytes, 0, item.bytes / way};
        const double before_s = limits_.horizon_s * reading_time(item, item.home);
        move.gain_s = before_s - limits_.horizon_s * reading_time(item, to);
        const bool is_worth_it = move.gain_s > move.cost_s * (1 + limits_.margin) &&
                                 move.gain_s > limits_.least * before_s;
        if (!is_worth_it || !std::isfinite(move.gain_s)) return std::nullopt;
        // What leaves gives its room back when its copy is done and its last reader gone, which is
        // long after these moves have begun.
        free_[to] -= item.bytes;
        return move;
    }

  private:
    double bandwidth(std::size_t from, std::size_t to) const {
        return input_.bandwidth[from * input_.nodes.size() + to];
    }

    double marginal_cost(const PlacedItem& item, std::size_t home) const {
        const PlacementNode& node = input_.nodes[home];
        double remote = 0;
        for (std::size_t i = 0; i < item.reads.size(); ++i) {
            if (i != home) remote += item.reads[i];
        }
        return remote / node.speed;
    }

    // Seconds of reading per second, of all nodes together. A way that was never measured counts
    // like the item's own move would: it must not look free.
    double reading_time(const PlacedItem& item, std::size_t home) const {
        double time = 0;
        for (std::size_t i = 0; i < item.reads.size(); ++i) {
            if (i == home || item.reads[i] <= 0) continue;
            const double way = bandwidth(home, i) > 0 ? bandwidth(home, i) : bandwidth(i, home);
            if (way > 0) time += item.reads[i] / way;
        }
        return time;
    }

    std::size_t best_node(const PlacedItem& item) const {
        std::size_t best = item.home;
        for (std::size_t j = 0; j < input_.nodes.size(); ++j) {
            const bool is_home = j == item.home;
            if (input_.nodes[j].speed <= 0 || (!is_home && free_[j] < item.bytes)) continue;
            const bool best_is_dead = input_.nodes[best].speed <= 0;
            // Strictly smaller: of two equal nodes the one that has it keeps it.
            if (best_is_dead || marginal_cost(item, j) < marginal_cost(item, best)) best = j;
        }
        return best;
    }

    const PlacementInput& input_;
    const PlacementLimits& limits_;
    std::vector<double> free_;
};

}  // namespace

std::optional<std::vector<Migration>> place_items(const PlacementInput& input,
                                                  const PlacementLimits& limits) {
    const double bounds[] = {limits.horizon_s, limits.margin, limits.least};
    if (!is_sound(input) || !usable(bounds)) return std::nullopt;
    Placer placer(input, limits);
    std::vector<Migration> moves;
    for (const PlacedItem& item : input.items) {
        if (moves.size() == limits.moves) break;
        if (const auto move = placer.place(item)) moves.push_back(*move);
    }
    return moves;
}

}  // namespace fabricd

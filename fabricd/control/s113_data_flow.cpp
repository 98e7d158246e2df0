#include "fabricd/control/s113_data_flow.hpp"

#include <cmath>
#include <limits>

#include "fabricd/control/apportion.hpp"
#include "fabricd/control/numbers.hpp"

namespace fabricd {

namespace {

constexpr double kDust = 1e-12;  // less than a sample of any batch

struct Transport {
    std::vector<std::size_t> sources, sinks;
    std::vector<double> supply, demand;
    std::vector<double> flow;  // source by sink

    double& at(std::size_t source, std::size_t sink) { return flow[source * sinks.size() + sink]; }
};

// Who gives and who takes; a rank does one of the two, or neither.
Transport differences(std::span<const double> before, std::span<const double> after) {
    Transport plan;
    for (std::size_t i = 0; i < before.size(); ++i) {
        const double more = after[i] - before[i];
        if (more < -kDust) {
            plan.sources.push_back(i);
            plan.supply.push_back(-more);
        } else if (more > kDust) {
            plan.sinks.push_back(i);
            plan.demand.push_back(more);
        }
    }
    plan.flow.assign(plan.sources.size() * plan.sinks.size(), 0);
    return plan;
}

// Each source serves sinks in turn: with one price for all, every plan that moves nothing twice is
// the cheapest.
void fill_in_order(Transport& plan) {
    std::size_t sink = 0;
    for (std::size_t source = 0; source < plan.sources.size(); ++source) {
        while (sink < plan.sinks.size() && plan.supply[source] > kDust) {
            const double part = std::min(plan.supply[source], plan.demand[sink]);
            plan.at(source, sink) += part;
            plan.supply[source] -= part;
            plan.demand[sink] -= part;
            if (plan.demand[sink] <= kDust) ++sink;
        }
    }
}

// The cheapest way from a source that has something left to a sink that wants something, where a
// flow that is there may be taken back (Bellman and Ford's algorithm: such a step has a negative
// price).
class CheapestWay {
  public:
    CheapestWay(Transport& plan, std::span<const double> cost, std::size_t nodes)
        : plan_(plan), cost_(cost), nodes_(nodes) {}

    bool augment() {
        search();
        const std::size_t sinks = plan_.sinks.size();
        std::size_t best = sinks;
        for (std::size_t k = 0; k < sinks; ++k) {
            if (plan_.demand[k] <= kDust || !std::isfinite(to_sink_[k])) continue;
            if (best == sinks || to_sink_[k] < to_sink_[best]) best = k;
        }
        if (best == sinks) return false;
        push(best);
        return true;
    }

  private:
    static constexpr double kFar = std::numeric_limits<double>::infinity();

    double price(std::size_t source, std::size_t sink) const {
        return cost_[plan_.sources[source] * nodes_ + plan_.sinks[sink]];
    }

    // Distances from all sources with something left, over flows in both directions.
    void search() {
        const std::size_t sources = plan_.sources.size();
        const std::size_t sinks = plan_.sinks.size();
        to_source_.assign(sources, kFar);
        to_sink_.assign(sinks, kFar);
        came_from_.assign(sinks, sources);
        returned_by_.assign(sources, sinks);
        for (std::size_t s = 0; s < sources; ++s) {
            if (plan_.supply[s] > kDust) to_source_[s] = 0;
        }
        bool better = true;
        for (std::size_t round = 0; better && round < sources + sinks; ++round) {
            better = false;
            for (std::size_t s = 0; s < sources; ++s) {
                for (std::size_t k = 0; k < sinks; ++k) better = relax(s, k) || better;
            }
        }
    }

    // By more than rounding, or two ways of one length would take turns for ever.
    static bool shorter(double way, double known) {
        if (!std::isfinite(known)) return std::isfinite(way);
        return way < known - kDust * (1 + std::abs(known));
    }

    bool relax(std::size_t s, std::size_t k) {
        const double there = to_source_[s] + price(s, k);
        if (shorter(there, to_sink_[k])) {
            to_sink_[k] = there;
            came_from_[k] = s;
            return true;
        }
        const double back = to_sink_[k] - price(s, k);
        if (plan_.at(s, k) > kDust && came_from_[k] != s && shorter(back, to_source_[s])) {
            to_source_[s] = back;
            returned_by_[s] = k;
            return true;
        }
        return false;
    }

    // Along the way, as much as its narrowest piece takes.
    void push(std::size_t sink) {
        double part = plan_.demand[sink];
        std::size_t k = sink;
        std::size_t s = came_from_[k];
        // Bounded, though there are no cycles: rounding shall never hang the daemon.
        for (std::size_t steps = 0; returned_by_[s] != plan_.sinks.size() && steps < nodes_;
             ++steps) {
            k = returned_by_[s];
            part = std::min(part, plan_.at(s, k));
            s = came_from_[k];
        }
        part = std::min(part, plan_.supply[s]);
        plan_.supply[s] -= part;
        plan_.demand[sink] -= part;
        k = sink;
        s = came_from_[k];
        plan_.at(s, k) += part;
        for (std::size_t steps = 0; returned_by_[s] != plan_.sinks.size() && steps < nodes_;
             ++steps) {
            k = returned_by_[s];
            plan_.at(s, k) -= part;
            s = came_from_[k];
            plan_.at(s, k) += part;
        }
    }

    Transport& plan_;
    std::span<const double> cost_;
    std::size_t nodes_;
    std::vector<double> to_source_, to_sink_;
    std::vector<std::size_t> came_from_;    // the source before a sink
    std::vector<std::size_t> returned_by_;  // the sink that gives back to a source
};

}  // namespace

std::optional<double> flow_cost(std::span<const double> bytes, std::span<const double> speeds,
                                std::span<const double> loads) {
    const std::size_t nodes = speeds.size();
    if (!usable(bytes) || !usable(speeds) || !usable(loads)) return std::nullopt;
    if (loads.size() != nodes || bytes.size() != nodes * nodes) return std::nullopt;
    double cost = 0;
    for (std::size_t j = 0; j < nodes; ++j) {
        double received = 0;
        for (std::size_t i = 0; i < nodes; ++i) received += bytes[i * nodes + j];
        if (received > 0 && speeds[j] <= 0) return std::nullopt;
        if (received > 0) cost += received * (1 + loads[j]) / speeds[j];
    }
    return usable(cost) ? std::optional(cost) : std::nullopt;
}

std::optional<std::vector<double>> balanced_shares(std::span<const double> speeds,
                                                   std::span<const double> loads, double floor) {
    if (!usable(speeds) || !usable(loads) || !usable(floor) || floor >= 1) return std::nullopt;
    if (speeds.size() != loads.size() || largest_of(speeds) <= 0) return std::nullopt;
    std::vector<double> weights;
    double working = 0;
    for (std::size_t i = 0; i < speeds.size(); ++i) {
        weights.push_back(speeds[i] / (1 + loads[i]));
        working += speeds[i] > 0 ? 1 : 0;
    }
    std::vector<double> shares = shares_of(weights);
    // Lifting some to the floor takes from those above it in proportion; they stay above, since the
    // floor is below the even share.
    const double least = floor / working;
    double lifted = 0;
    double above = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
        if (speeds[i] <= 0) continue;
        lifted += std::max(least - shares[i], 0.0);
        above += std::max(shares[i] - least, 0.0);
    }
    for (std::size_t i = 0; i < shares.size() && lifted > 0; ++i) {
        if (speeds[i] <= 0) continue;
        const double over = shares[i] - least;
        shares[i] = over > 0 ? shares[i] - lifted * over / above : least;
    }
    return shares;
}

std::vector<FlowMove> cheapest_transport(std::span<const double> before,
                                         std::span<const double> after,
                                         std::span<const double> cost) {
    if (!usable(before) || !usable(after) || before.size() != after.size()) return {};
    const std::size_t nodes = before.size();
    Transport plan = differences(before, after);
    // Paths that nobody has measured have no price, and then all cost the same.
    const bool priced = cost.size() == nodes * nodes && usable(cost);
    if (priced) {
        CheapestWay way(plan, cost, nodes);
        // Each augmentation settles a source, a sink or a flow that is taken back; the bound only
        // guards against rounding.
        for (std::size_t i = 0; i < nodes * nodes + nodes && way.augment(); ++i) {
        }
    } else {
        fill_in_order(plan);
    }
    std::vector<FlowMove> moves;
    for (std::size_t s = 0; s < plan.sources.size(); ++s) {
        for (std::size_t k = 0; k < plan.sinks.size(); ++k) {
            const double part = plan.at(s, k);
            if (part > kDust) moves.push_back({plan.sources[s], plan.sinks[k], part});
        }
    }
    return moves;
}

double moved_part(std::span<const double> before, std::span<const double> after) noexcept {
    double moved = 0;
    for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
        moved += std::abs(after[i] - before[i]) / 2;
    }
    return moved;
}

}  // namespace fabricd

#include "emu/sim/fluid.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "libfabricshm/base/check.hpp"

namespace emu {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Levels this close are one: rounding must not turn one bottleneck into thousands.
constexpr double kSame = 1 + 1e-9;
constexpr double kNoWeight = 1e-12;

}  // namespace

int Fluid::add_resource(double capacity) {
    // 0 would stop its activities for ever; what does not limit is no resource at all.
    FABRIC_CHECK(capacity > 0);
    capacity_.push_back(capacity);
    passed_.push_back(0);
    used_.push_back(0);
    for (auto& common : common_) common.push_back(0);
    return static_cast<int>(capacity_.size()) - 1;
}

void Fluid::set_common(int spread, int resource, double weight) {
    common_[at(spread)][at(resource)] = weight;
}

int Fluid::add_load(Load load) {
    // An index and not a pointer: the list grows while activities refer to it.
    loads_.push_back(std::move(load));
    return static_cast<int>(loads_.size()) - 1;
}

int Fluid::add_pot(double units) {
    pots_.push_back({units, 0});
    return static_cast<int>(pots_.size()) - 1;
}

void Fluid::start(int job, int load, double units) {
    // An activity without units would end before it began, and its step is to be skipped by its
    // maker.
    FABRIC_CHECK(units > 0);
    active_.push_back({job, load, -1, units, 0, false, false});
    // Rates are computed when asked for, so that all that starts at one moment costs one
    // computation.
    changed_ = true;
}

void Fluid::start_on_pot(int job, int load, int pot) {
    if (pots_[at(pot)].left <= 0) {
        ended_.push_back(job);  // the others have done it all
        return;
    }
    active_.push_back({job, load, pot, 0, 0, false, false});
    changed_ = true;
}

double Fluid::units_left(const Activity& activity) const noexcept {
    // A pot's rest is shared, so that its activities end together.
    return activity.pot < 0 ? activity.left : pots_[at(activity.pot)].left;
}

Seconds Fluid::next_end() {
    // What has ended is to be taken out before time goes on.
    if (!ended_.empty()) return now_;
    if (changed_) solve();
    return next_;
}

void Fluid::advance(Seconds to) {
    const Seconds end = next_end();
    FABRIC_CHECK(to >= now_ && to <= end);
    const Seconds length = to - now_;
    now_ = to;
    if (length > 0) {
        // By the rates of this stretch of time, which are constant within it.
        for (std::size_t i = 0; i < used_.size(); ++i) passed_[i] += used_[i] * length;
        for (Activity& activity : active_) activity.left -= activity.rate * length;
        for (Pot& pot : pots_) pot.left -= pot.rate * length;
    }
    // Nothing ends before `next_end()`.
    if (to < end) return;
    // What would end within a billionth of a second's work ends now, or rounding would leave
    // crumbs that never do.
    std::vector<Activity> going;
    for (const Activity& activity : active_) {
        const double rate = activity.pot < 0 ? activity.rate : pots_[at(activity.pot)].rate;
        const bool over = units_left(activity) <= rate * (std::abs(to) * 1e-12 + 1e-15);
        if (over) {
            ended_.push_back(activity.job);
        } else {
            going.push_back(activity);
        }
    }
    for (Pot& pot : pots_) {
        if (pot.left <= pot.rate * (std::abs(to) * 1e-12 + 1e-15)) pot.left = 0;
    }
    if (going.size() != active_.size()) changed_ = true;
    active_ = std::move(going);
}

std::vector<int> Fluid::take_ended() {
    return std::exchange(ended_, {});
}

std::vector<double> Fluid::rates() {
    if (changed_) solve();
    std::vector<double> rates;
    for (const Activity& activity : active_) rates.push_back(activity.rate);
    return rates;
}

void Fluid::add_use(const Load& load, double rate, std::vector<double>& sums) const {
    for (const Use& use : load.uses) sums[at(use.resource)] += use.weight * rate;
}

// Progressive filling: all rates rise together; one that reaches a full resource, or its own limit,
// stays there, and the others go on.
void Fluid::solve() {
    changed_ = false;
    std::vector<double> weights(capacity_.size());
    std::vector<double> used(capacity_.size(), 0);
    for (Activity& activity : active_) activity.frozen = false;
    int left = static_cast<int>(active_.size());
    while (left > 0) {
        weigh(weights);
        const double level = highest_level(weights, used);
        const int frozen = freeze(level, weights, used);
        FABRIC_CHECK(frozen > 0);
        // At least one is frozen in each round, so that it ends after as many rounds as there are
        // activities, and mostly after a few.
        left -= frozen;
    }
    used_ = std::move(used);
    next_ = kNever;
    for (Pot& pot : pots_) pot.rate = 0;
    for (const Activity& activity : active_) {
        if (activity.pot >= 0) pots_[at(activity.pot)].rate += activity.rate;
    }
    for (const Activity& activity : active_) {
        // A pot is emptied at the rate of all that work on it.
        const double rate = activity.pot < 0 ? activity.rate : pots_[at(activity.pot)].rate;
        next_ = std::min(next_, now_ + std::max(units_left(activity), 0.0) / rate);
    }
}

// The weight of all activities that still rise, by resource.
void Fluid::weigh(std::vector<double>& weights) const {
    std::fill(weights.begin(), weights.end(), 0.0);
    std::array<double, kSpreads> spread{};
    // A frozen one has its rate and is part of `used`.
    for (const Activity& activity : active_) {
        if (activity.frozen) continue;
        const Load& load = loads_[at(activity.load)];
        add_use(load, 1, weights);
        for (int s = 0; s < kSpreads; ++s) spread[at(s)] += load.spread[at(s)];
    }
    // Once for all activities together: this is what makes a load cost its depth and not the tree's
    // width.
    for (int s = 0; s < kSpreads; ++s) {
        if (spread[at(s)] == 0) continue;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            weights[i] += spread[at(s)] * common_[at(s)][i];
        }
    }
}

double Fluid::highest_level(const std::vector<double>& weights,
                            const std::vector<double>& used) const {
    double level = kNever;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        // Corrections may leave a weight of rounding where there is none.
        if (weights[i] <= kNoWeight) continue;
        level = std::min(level, std::max(capacity_[i] - used[i], 0.0) / weights[i]);
    }
    return level;
}

// Whether a unit of the load weighs on a full resource.
bool Fluid::is_held(const Load& load, const std::vector<char>& full,
                    const std::array<int, kSpreads>& full_common) const {
    std::array<int, kSpreads> corrected{};
    for (const Use& use : load.uses) {
        if (full[at(use.resource)] == 0) continue;
        double weight = use.weight;
        for (int s = 0; s < kSpreads; ++s) {
            const double common = common_[at(s)][at(use.resource)];
            weight += load.spread[at(s)] * common;
            if (common > 0) ++corrected[at(s)];
        }
        if (weight > kNoWeight) return true;
    }
    // Of the full resources with a common weight, one that the load does not correct holds it.
    for (int s = 0; s < kSpreads; ++s) {
        if (load.spread[at(s)] > 0 && full_common[at(s)] > corrected[at(s)]) return true;
    }
    return false;
}

int Fluid::freeze(double level, const std::vector<double>& weights, std::vector<double>& used) {
    // First those whose own limit is below the level: without them the level can only rise, so
    // they are at their limit whatever comes.
    bool limited = false;
    for (const Activity& activity : active_) {
        limited = limited || (!activity.frozen && loads_[at(activity.load)].most <= level);
    }
    std::vector<char> full(capacity_.size(), 0);
    std::array<int, kSpreads> full_common{};
    // With an activity at its own limit, resources are checked again in the next round, with the
    // others' level higher.
    for (std::size_t i = 0; i < full.size() && !limited; ++i) {
        const double room = std::max(capacity_[i] - used[i], 0.0);
        full[i] = weights[i] > kNoWeight && room <= level * kSame * weights[i] ? 1 : 0;
        for (int s = 0; s < kSpreads; ++s) {
            if (full[i] != 0 && common_[at(s)][i] > 0) ++full_common[at(s)];
        }
    }
    int frozen = 0;
    std::array<double, kSpreads> spread{};
    for (Activity& activity : active_) {
        if (activity.frozen) continue;
        const Load& load = loads_[at(activity.load)];
        const bool holds = limited ? load.most <= level : is_held(load, full, full_common);
        if (!holds) continue;
        activity.frozen = true;
        // A full resource leaves nothing; a trickle keeps every end finite.
        activity.rate = std::max(std::min(level, load.most), 1e-3);
        ++frozen;
        add_use(load, activity.rate, used);
        for (int s = 0; s < kSpreads; ++s) spread[at(s)] += load.spread[at(s)] * activity.rate;
    }
    for (int s = 0; s < kSpreads; ++s) {
        if (spread[at(s)] == 0) continue;
        for (std::size_t i = 0; i < used.size(); ++i) used[i] += spread[at(s)] * common_[at(s)][i];
    }
    return frozen;
}

}  // namespace emu

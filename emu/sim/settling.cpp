#include "emu/sim/settling.hpp"

#include <algorithm>
#include <cmath>

namespace emu {

namespace {

// Efficiency from which on shares count as good: docs/simulator.md reports settling by it.
constexpr double kGood = 0.9;
/// A share that moves by less does not count as a direction.
constexpr double kMove = 0.05;

/// Best possible time of a step over the one that these shares give, without noise.
/// By the slowest rank: that is what a step takes.
double efficiency_of(const std::vector<double>& shares, const std::vector<double>& speeds) {
    double sum = 0;
    double all = 0;
    // A device that has failed has no share, whatever the decision says; the rest is scaled to 1,
    // as the run does it.
    for (std::size_t i = 0; i < shares.size(); ++i) {
        if (speeds[i] > 0) sum += shares[i];
        all += speeds[i];
    }
    double slowest = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
        if (speeds[i] > 0) slowest = std::max(slowest, shares[i] / sum / speeds[i]);
    }
    return slowest > 0 ? 1 / (slowest * all) : 1;
}

/// How often the share of one rank turned round.
/// Counted per rank, since shares of the others follow every change a little.
std::uint64_t turns(const std::vector<const std::vector<double>*>& shares, std::size_t rank) {
    std::uint64_t count = 0;
    int direction = 0;
    for (std::size_t i = 1; i < shares.size(); ++i) {
        const double before = (*shares[i - 1])[rank];
        const double change = (*shares[i])[rank] - before;
        if (std::abs(change) <= kMove * before) continue;
        const int now = change > 0 ? 1 : -1;
        if (direction != 0 && now != direction) ++count;
        direction = now;
    }
    return count;
}

}  // namespace

SettlingWatch::SettlingWatch(const Workload& workload, const Trace& trace, Policy policy)
    : watched_(std::move(policy)), oracle_(oracle_policy(workload, trace)) {}

Policy SettlingWatch::policy() {
    return [this](const Snapshot& seen) {
        Decision decision = watched_(seen);
        watch(seen, decision);
        return decision;
    };
}

void SettlingWatch::watch(const Snapshot& seen, const Decision& decision) {
    // With the slowest one's compute time, since all others wait for it.
    double step = seen.communication;
    for (std::size_t i = 0; i < seen.compute.size(); ++i) {
        step = std::max(step, seen.compute[i] + seen.communication);
    }
    now_s_ += step;
    // The oracle's shares are the speeds of the next step, for which this decision is.
    std::vector<double> speeds = oracle_(seen).shares;
    Moment moment;
    moment.now_s = now_s_;
    moment.efficiency = efficiency_of(decision.shares, speeds);
    // By true speeds, which no policy sees: a shrink and a straggler are changes, noise is none.
    moment.is_change = !speeds_.empty() && speeds != speeds_;
    // Shares of thousands of devices in every step would fill the memory; most steps leave them as
    // they are.
    if (moment.is_change || shares_ != decision.shares) moment.shares = decision.shares;
    speeds_ = std::move(speeds);
    shares_ = decision.shares;
    moments_.push_back(std::move(moment));
}

std::vector<Settled> SettlingWatch::changes(double least_s) const {
    std::vector<Settled> all;
    for (std::size_t i = 0; i < moments_.size(); ++i) {
        // The start counts as well: ranks of different speeds begin with equal shares.
        if (i != 0 && !moments_[i].is_change) continue;
        std::size_t end = i + 1;
        while (end < moments_.size() && !moments_[end].is_change) ++end;
        const double length = moments_[end - 1].now_s - moments_[i].now_s;
        // Changes that did no harm need no answer, and those too short before the next one can't be
        // judged.
        if (moments_[i].efficiency >= kGood || length < least_s) continue;
        Settled settled;
        settled.step = i;
        // From the end backwards: good shares count from when they stay good.
        std::size_t good = end;
        while (good > i && moments_[good - 1].efficiency >= kGood) --good;
        settled.is_settled = good < end;
        // Not settled: the whole time until the next change, so that a median over changes stays
        // honest.
        settled.seconds = (settled.is_settled ? moments_[good].now_s : moments_[end - 1].now_s) -
                          moments_[i].now_s;
        std::vector<const std::vector<double>*> shares;
        for (std::size_t k = i; k < end; ++k) {
            if (!moments_[k].shares.empty()) shares.push_back(&moments_[k].shares);
        }
        const std::size_t ranks = shares.empty() ? 0 : shares.front()->size();
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            settled.reversals = std::max(settled.reversals, turns(shares, rank));
        }
        all.push_back(settled);
    }
    return all;
}

}  // namespace emu

#include "fabricd/control/stages/lending.hpp"

#include <algorithm>
#include <cmath>

#include "fabricd/control/stages/apportion.hpp"
#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

using Parts = std::vector<double>;

Parts held_by(std::span<const Holder> holders) {
    Parts held;
    for (const Holder& holder : holders) held.push_back(holder.held);
    return held;
}

double free_of(std::span<const Holder> holders, double room) {
    return std::max(std::floor(room) - sum_of(held_by(holders)), 0.0);
}

double weight_of(const Holder& holder) {
    return usable(holder.weight) ? holder.weight : 0;
}

/// What each would give when none may fall below `least(holder)`.
template <typename Least>
Parts offers(std::span<const Holder> holders, const Parts& held, Least least) {
    Parts parts;
    for (std::size_t i = 0; i < holders.size(); ++i) {
        parts.push_back(std::max(std::floor(held[i] - least(holders[i])), 0.0));
    }
    return parts;
}

// Takes so much from `held`, by the offers. What could not be taken.
double take(Parts& held, double bytes, const Parts& offered) {
    const Parts parts = whole_under_caps(bytes, offered, offered);
    for (std::size_t i = 0; i < held.size(); ++i) held[i] -= parts[i];
    return bytes - sum_of(parts);
}

double least_of_loan(const Holder& holder) {
    return std::max({holder.promised, holder.in_use, holder.asks > 0 ? 0.0 : holder.keeps});
}

double least_of_own(const Holder& holder) {
    return holder.asks > 0 ? holder.held : std::max(holder.in_use, holder.keeps);
}

}  // namespace

std::vector<double> give_back(std::span<const Holder> holders, double room) {
    Parts held = held_by(holders);
    Parts claims, weights;
    for (const Holder& holder : holders) {
        const double owed = std::min(holder.promised, holder.most) - holder.held;
        claims.push_back(holder.asks > 0 ? std::max(std::floor(owed), 0.0) : 0);
        weights.push_back(claims.back());
    }
    // A loan goes home whether its taker would like more or not; only what is in use has to stay.
    const Parts loans = offers(holders, held, [](const Holder& holder) {
        return std::max(holder.promised, holder.in_use);
    });
    Parts rest = held;
    const double free_units = free_of(holders, room);
    for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= loans[i];
    const Parts own = offers(holders, rest, least_of_own);
    const double there = sum_of(loans) + free_units + sum_of(own);
    const Parts grants = whole_under_caps(std::min(sum_of(claims), there), weights, claims);
    double wanted = take(held, sum_of(grants), loans);
    wanted -= std::min(wanted, free_units);
    (void)take(held, wanted, own);
    for (std::size_t i = 0; i < held.size(); ++i) held[i] += grants[i];
    return held;
}

std::vector<double> lend(std::span<const Holder> holders, double room) {
    Parts held = held_by(holders);
    Parts claims, weights;
    for (const Holder& holder : holders) {
        const double most = std::max(std::floor(holder.most - holder.held), 0.0);
        claims.push_back(std::min(std::floor(std::max(holder.asks, 0.0)), most));
        weights.push_back(weight_of(holder));
    }
    const Parts loans = offers(holders, held, [](const Holder& holder) {
        return holder.asks > 0 ? holder.held : least_of_loan(holder);
    });
    Parts rest = held;
    for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= loans[i];
    const Parts own = offers(holders, rest, least_of_own);
    const double free_units = free_of(holders, room);
    const double there = free_units + sum_of(loans) + sum_of(own);
    const Parts grants = whole_under_caps(std::min(sum_of(claims), there), weights, claims);
    double wanted = sum_of(grants);
    wanted -= std::min(wanted, free_units);
    (void)take(held, take(held, wanted, loans), own);
    for (std::size_t i = 0; i < held.size(); ++i) held[i] += grants[i];
    return held;
}

std::vector<double> fit(std::span<const Holder> holders, double room) {
    Parts held = held_by(holders);
    double excess = std::max(sum_of(held) - std::floor(room), 0.0);
    excess = take(held, excess, offers(holders, held, least_of_loan));
    excess = take(held, excess, offers(holders, held, least_of_own));
    (void)take(held, excess,
               offers(holders, held, [](const Holder& holder) { return holder.in_use; }));
    return held;
}

}  // namespace fabricd

#include "fabricd/control/stages/apportion.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

std::vector<double> shares_of(std::span<const double> weights) {
    std::vector<double> shares;
    for (const double weight : weights) shares.push_back(usable(weight) ? weight : 0);
    // Divided by the largest first: the sum of several numbers near the largest double would be
    // infinite, and every share then 0.
    const double largest = largest_of(shares);
    if (largest <= 0) {
        std::fill(shares.begin(), shares.end(), 1.0 / static_cast<double>(shares.size()));
        return shares;
    }
    for (double& share : shares) share /= largest;
    const double sum = sum_of(shares);
    for (double& share : shares) share /= sum;
    return shares;
}

std::vector<std::uint64_t> whole_units(std::uint64_t units, std::span<const double> weights) {
    const std::vector<double> shares = shares_of(weights);
    std::vector<std::uint64_t> parts(shares.size(), 0);
    if (shares.empty()) return parts;
    std::vector<double> remainders(shares.size());
    std::uint64_t given = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
        const double exact = shares[i] * static_cast<double>(units);
        // Rounding of the product may pass what is left when `units` is beyond 2^53, and all
        // integers when it is close to 2^64: compared before it is converted.
        const std::uint64_t most = units - given;
        parts[i] = exact < static_cast<double>(most) ? static_cast<std::uint64_t>(exact) : most;
        given += parts[i];
        remainders[i] = exact - std::floor(exact);
    }
    std::vector<std::size_t> order(shares.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    // Stable, so that equal remainders stay in the order of their indices.
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
    // At most one for each, but for that rounding: then it goes round again.
    for (std::size_t next = 0; given < units; next = (next + 1) % order.size()) {
        const std::uint64_t left = units - given;
        const std::uint64_t part = left > order.size() ? left / order.size() : 1;
        parts[order[next]] += part;
        given += part;
    }
    return parts;
}

std::vector<double> fill_under_caps(double total, std::span<const double> weights,
                                    std::span<const double> caps) {
    std::vector<double> parts(weights.size(), 0);
    std::vector<char> open(weights.size());
    double left = usable(total) ? total : 0;
    // Each round either fills one up or hands out all that is left, so n + 1 rounds are
    // enough.
    for (std::size_t round = 0; round <= weights.size() && left > 0; ++round) {
        std::vector<double> now(weights.size(), 0);
        bool any = false;
        for (std::size_t i = 0; i < now.size(); ++i) {
            const double room = usable(caps[i]) ? caps[i] - parts[i] : 0;
            open[i] = room > 0 ? 1 : 0;
            if (open[i] != 0 && usable(weights[i])) now[i] = weights[i];
            any = any || now[i] > 0;
        }
        if (std::count(open.begin(), open.end(), 1) == 0) break;
        // Only those without weight have room: they share what is left evenly.
        if (!any) std::transform(open.begin(), open.end(), now.begin(), [](char is) { return is; });
        const std::vector<double> shares = shares_of(now);
        const double handed_out = left;
        for (std::size_t i = 0; i < shares.size(); ++i) {
            if (open[i] == 0) continue;
            const double part = std::min(handed_out * shares[i], caps[i] - parts[i]);
            parts[i] += part;
            left -= part;
        }
        if (left <= handed_out * 1e-15) break;
    }
    return parts;
}

std::vector<double> whole_under_caps(double total, std::span<const double> weights,
                                     std::span<const double> caps) {
    std::vector<double> most;
    for (const double cap : caps) most.push_back(usable(cap) ? std::floor(cap) : 0);
    const double whole = usable(total) ? std::floor(std::min(total, sum_of(most))) : 0;
    std::vector<double> parts = fill_under_caps(whole, weights, most);
    double left = whole;
    for (double& part : parts) left -= part = std::floor(part);
    // What rounding left: less than a unit for each.
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const double more = std::min(most[i] - parts[i], left);
        parts[i] += more;
        left -= more;
    }
    return parts;
}

}  // namespace fabricd

#include "fabricd/control/policies/quota_plan.hpp"

#include <algorithm>
#include <cmath>

namespace fabricd {

namespace {

/// What a quota may always change by: a quarter of next to nothing is nothing.
constexpr double kMinStep = 2.0 * 1024 * 1024;

}  // namespace

Holder holder_of(const QuotaWindow& user, const ControlConfig& config) {
    Holder holder;
    holder.held = user.quota;
    holder.promised = user.promised > 0 ? user.promised : user.quota;
    // The last byte is not lent: a quota of 0 would be none at all.
    holder.in_use = std::max(std::ceil(std::min(user.used, user.quota)), std::min(user.quota, 1.0));
    const double filled = std::max(config.quota_filled, 0.01);
    const double right = (user.used + user.denied) / filled;
    // An idle one keeps a little, so that it can begin at once with something.
    holder.keeps = std::ceil(std::max(user.used / filled, config.quota_min * holder.promised));
    // A user that was refused memory does not get less, whatever the refusal was about.
    if (user.denied > 0) holder.keeps = std::max(holder.keeps, holder.held);
    const double step = std::max(config.quota_step * user.quota, kMinStep);
    holder.asks = asks_of(user, std::min(right - user.quota, step), config);
    return holder;
}

double asks_of(const QuotaWindow& user, double more, const ControlConfig& config) {
    // Beyond its promise a quota that is not missed is left alone, also where people made it small.
    const bool is_short = user.quota < user.promised && more > config.gain * user.quota;
    return (is_short || user.denied > 0) && more >= 1 ? more : 0;
}

bool is_worth_returning(std::span<const Holder> holders, const std::vector<double>& after,
                        double gain) {
    for (std::size_t i = 0; i < holders.size(); ++i) {
        const double more = after[i] - holders[i].held;
        const bool is_all = after[i] >= std::floor(holders[i].promised);
        if (more > 0 && (is_all || more > gain * holders[i].held)) return true;
    }
    return false;
}

std::optional<Decision> as_return(Decision decision) {
    const ActionFrame frame = frame_of(decision.action);
    std::string receivers;
    for (std::size_t i = 0; i < frame.names.size(); ++i) {
        if (frame.after[i] <= frame.before[i]) continue;
        receivers += (receivers.empty() ? "" : ", ") + frame.names[i];
    }
    if (receivers.empty()) return std::nullopt;
    decision.outcome = Outcome::kDone;
    decision.reason = receivers + " needs what it was promised";
    return decision;
}

}  // namespace fabricd

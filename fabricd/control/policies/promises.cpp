#include "fabricd/control/policies/promises.hpp"

#include <algorithm>
#include <cmath>

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

void Promises::complete(std::span<QuotaWindow> users, double half_life) {
    const double left = half_life > 0 ? std::exp2(-1 / half_life) : 0;
    for (QuotaWindow& window : users) {
        const auto [place, is_new] = users_.try_emplace(window.name);
        User& user = place->second;
        window.promised = promise_of(user.memory, is_new, window.promised, window.quota);
        // 0 says that nothing measures it now, not that it was set.
        if (window.percent != 0) {
            const bool is_first = user.compute.now == 0;
            window.promised_percent = promise_of(user.compute, is_first, window.promised_percent,
                                                 static_cast<double>(window.percent));
        }
        user.usage = std::max(usable(window.usage) ? window.usage : 0, left * user.usage);
        user.held_up = std::max(usable(window.held_up) ? window.held_up : 0, left * user.held_up);
        window.usage = user.usage;
        window.held_up = user.held_up;
    }
}

double Promises::promise_of(Part& part, bool is_new, double promised, double now) {
    if (is_new) part = {promised > 0 ? promised : now, now, now};
    // People said what they want it to be.
    if (now != part.now && now != part.before) part.promised = now;
    part.now = part.before = now;
    return part.promised;
}

void Promises::note(const Decision& decision) {
    std::visit([this](const auto& action) { note_action(action); }, decision.action);
}

template <typename A>
void Promises::note_action(const A& action) {
    // Values without names belong to no user.
    if constexpr (NamedAction<A>) {
        for (const auto& change : action.changes) {
            const auto found = users_.find(change.name);
            if (found == users_.end()) continue;
            constexpr bool kIsShare = std::is_same_v<A, ComputeShare>;
            Part& part = kIsShare ? found->second.compute : found->second.memory;
            part.now = static_cast<double>(change.after);
            part.before = static_cast<double>(change.before);
        }
    }
}

}  // namespace fabricd

#include "fabricd/control/promises.hpp"

#include <algorithm>
#include <cmath>

#include "fabricd/control/numbers.hpp"

namespace fabricd {

void Promises::complete(std::span<QuotaWindow> users, double half_life) {
    const double left = half_life > 0 ? std::exp2(-1 / half_life) : 0;
    for (QuotaWindow& window : users) {
        const auto [place, is_new] = users_.try_emplace(window.name);
        User& user = place->second;
        window.promised = promise_of(user.memory, is_new, window.promised, window.quota);
        // 0 says that nothing measures it now, not that anybody set it.
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
    for (std::size_t i = 0; i < decision.names.size(); ++i) {
        const auto found = users_.find(decision.names[i]);
        if (found == users_.end()) continue;
        const bool is_share = decision.kind == ActionKind::kComputeShare;
        Part& part = is_share ? found->second.compute : found->second.memory;
        part.now = decision.after[i];
        part.before = decision.before[i];
    }
}

}  // namespace fabricd

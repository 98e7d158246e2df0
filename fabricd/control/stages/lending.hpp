// Lending: how a whole that is promised in parts is shared out while some need less than their part
// and others more. A promise is a floor: what its owner does not use is lent, and it comes back
// before any other gets more than its own. Pure; memory of vGPUs and of the pool.

#pragma once

#include <span>
#include <vector>

namespace fabricd {

/// All in whole units (bytes).
struct Holder {
    double promised = 0;
    double held = 0;      // its quota now
    double in_use = 0;    // of that: it can't be taken
    double keeps = 0;     // what it would not like to be without, as long as it asks for nothing
    double asks = 0;      // what it wants besides `held`; 0: nothing
    double weight = 1;    // among several that ask
    double most = 1e300;  // never more than that
};

/// A holder that asks and has less than its promise gets all of that back, as far as there is
/// anything that is not in use: first what others hold above their promise, then what is left of
/// `room`, then what others don't use of their own. The new quotas, as many as there are holders;
/// nothing changes when no holder is owed anything.
std::vector<double> give_back(std::span<const Holder> holders, double room);

/// A holder that asks gets what is left of `room`, then what others were lent and don't use, then
/// what others don't use of their own: no more than is asked for, and from those that ask nothing
/// is taken. Several share what there is by weight.
std::vector<double> lend(std::span<const Holder> holders, double room);

/// Where quotas are together more than `room`: what is too much is taken in the same order, and
/// last from those that ask. What is in use stays.
std::vector<double> fit(std::span<const Holder> holders, double room);

}  // namespace fabricd

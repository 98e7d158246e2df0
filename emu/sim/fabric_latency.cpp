// The latencies of a fabric: how long a first byte, a word, a turn on a shared core take.

#include <algorithm>

#include "emu/sim/fabric.hpp"

namespace emu {

using fabricshm::Step;
using fabricshm::Touch;
using fabricshm::Whose;

// One way, from the home to the device. A request goes the same way back.
Seconds Fabric::route_latency(int rank, int home) const {
    int from = home;
    int to = devices_[at(rank)];
    Seconds sum = 0;
    while (from != to) {
        int& moving = depth_[at(from)] >= depth_[at(to)] ? from : to;
        sum += topology_.nodes[at(moving)].latency;
        moving = topology_.nodes[at(moving)].parent;
    }
    return sum;
}

// The mean over all homes, by their share of the bytes.
Seconds Fabric::spread_latency(int rank) const {
    Seconds sum = mean_latency_;
    for (int node = devices_[at(rank)]; node > 0; node = topology_.nodes[at(node)].parent) {
        // Those below come without crossing this link, all others have to.
        sum += topology_.nodes[at(node)].latency * (1 - 2 * below_[at(node)]);
    }
    return sum;
}

Seconds Fabric::first_byte(int rank, const Step& step) const {
    Seconds longest = 0;
    for (int i = 0; i < step.touch_count; ++i) {
        const Touch& touch = step.touches[at(i)];
        if (touch.write) continue;
        const bool alike = touch.whose == Whose::kEach || touch.whose == Whose::kOthers ||
                           touch.whose == Whose::kShares ||
                           topology_.placement == Placement::kInterleaved;
        // Homes are alike in their own latency when bytes are spread over them.
        const int home = alike ? homes_[0] : node_of(rank, touch);
        // There and back, and the memory in between. Latency is not shared: it does not rise with
        // load here.
        const Seconds way = alike ? spread_latency(rank) : route_latency(rank, home);
        longest = std::max(longest, 2 * way + topology_.nodes[at(home)].media_latency);
    }
    return longest;
}

// The words lie where the group block is: in the arena, so where buffers are.
Seconds Fabric::line_read(int rank) const {
    if (topology_.line_latency > 0) return topology_.line_latency;
    const bool spread = topology_.placement == Placement::kInterleaved;
    const Seconds way = spread ? spread_latency(rank) : route_latency(rank, homes_[0]);
    return 2 * way + topology_.nodes[at(homes_[0])].media_latency;
}

Seconds Fabric::word_store(int rank) const {
    if (topology_.line_latency > 0) return 0;  // the reader's miss carries all of it
    const bool spread = topology_.placement == Placement::kInterleaved;
    return spread ? spread_latency(rank) : route_latency(rank, homes_[0]);
}

// Ranks that share a core take turns: in every barrier each of them has to be let in to arrive,
// and all but the last once more to see that the others have.
void Fabric::count_turns() {
    std::vector<int> ranks(topology_.nodes.size(), 0);
    for (const int device : devices_) {
        const int host = topology_.nodes[at(device)].parent;
        if (host >= 0) ++ranks[at(host)];
    }
    for (const int device : devices_) {
        const int host = topology_.nodes[at(device)].parent;
        const int cores = host >= 0 ? topology_.nodes[at(host)].cores : 0;
        const double share = cores > 0 ? static_cast<double>(ranks[at(host)]) / cores : 1;
        turns_.push_back(share > 1 ? share * topology_.switch_cost : 0);
    }
}

}  // namespace emu

#include "fabricd/control/policies/shard_watch.hpp"

#include <algorithm>

namespace fabricd {

namespace {

constexpr int kRefusalDoublings = 4;

}  // namespace

PlacementWindow ShardWatch::update(const PlacementWindow& window, const ControlConfig& config,
                                   double weight) {
    std::vector<std::string> nodes;
    for (const NodeWindow& node : window.nodes) nodes.push_back(node.name);
    // Places in the lists are nodes: with other nodes all of them mean something else.
    if (nodes != nodes_) shards_.clear();
    nodes_ = std::move(nodes);
    ++look_;
    PlacementWindow ready{window.nodes, window.bandwidth, {}};
    for (const ShardWindow& shard : window.shards) {
        if (shard.reads.size() != nodes_.size()) continue;
        const auto [place, is_new] = shards_.try_emplace(shard.name);
        Memory& memory = place->second;
        if (is_new) {
            memory.reads.resize(nodes_.size());
            memory.home = shard.home;
        }
        if (memory.home != shard.home) memory.refusals = 0;
        if (memory.home != shard.home || shard.moving) memory.rests = config.cool_down;
        memory.home = shard.home;
        memory.seen = look_;
        ShardWindow known = shard;
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            memory.reads[i].update(shard.reads[i], weight);
            known.reads[i] = memory.reads[i].mean;
        }
        if (memory.rests > 0) {
            --memory.rests;
        } else if (is_known(memory, config.imbalance_windows)) {
            ready.shards.push_back(std::move(known));
        }
    }
    std::erase_if(shards_, [&](const auto& entry) { return entry.second.seen != look_; });
    return ready;
}

void ShardWatch::refuse(const std::string& shard, std::int64_t cool_down) {
    const auto found = shards_.find(shard);
    if (found == shards_.end()) return;
    Memory& memory = found->second;
    memory.rests = std::max<std::int64_t>(cool_down, 1) << memory.refusals;
    memory.refusals = std::min(memory.refusals + 1, kRefusalDoublings);
}

PlacementWindow ShardWatch::without_refused(const PlacementWindow& ready) const {
    PlacementWindow others{ready.nodes, ready.bandwidth, {}};
    for (const ShardWindow& shard : ready.shards) {
        const auto known = shards_.find(shard.name);
        const bool refused = known != shards_.end() && known->second.refusals > 0;
        if (!refused) others.shards.push_back(shard);
    }
    return others;
}

// A reader that came or went begins a new mean, which has to prove itself like the first.
bool ShardWatch::is_known(const Memory& memory, std::int64_t windows) {
    return std::all_of(memory.reads.begin(), memory.reads.end(), [&](const Ewma& reads) {
        return static_cast<std::int64_t>(reads.values) >= windows;
    });
}

}  // namespace fabricd

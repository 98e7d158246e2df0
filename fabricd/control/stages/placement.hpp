// S213: on which node should each data item be at home? Pure.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fabricd {

struct PlacedItem {
    std::uint64_t id = 0;
    double bytes = 0;
    std::size_t home = 0;       // node where it is now
    std::vector<double> reads;  // bytes per second that each node reads of it
};

struct PlacementNode {
    double speed = 0;       // C: samples per second when computing
    double free_bytes = 0;  // memory for items that come
};

struct PlacementInput {
    std::vector<PlacedItem> items;     // in the order of S212
    std::vector<PlacementNode> nodes;  // `reads` of each item are in this order
    std::vector<double> bandwidth;     // bytes per second from row to column; 0: no way known
};

struct PlacementLimits {
    double horizon_s = 60;  // a move has to be worth it within this time
    double margin = 0.05;   // and by this much more than it costs
    std::size_t moves = 4;  // at once
    double least = 0;       // and save this part of the reading time: others would fetch it back
};

struct Migration {
    std::uint64_t item = 0;
    std::size_t from = 0;
    std::size_t to = 0;
    double bytes = 0;
    double gain_s = 0;  // reading time that is saved within the horizon
    double cost_s = 0;  // bytes / bandwidth from the old home to the new
};

/// Goes through the items in their order: each goes to the node with the smallest marginal F,
///   F_j = sum over the other nodes i of reads_i / C_j
/// (reads of the node that has it cost nothing; of the load of others L nothing is known), that has
/// the memory. It moves only if the reading time saved within the horizon beats bytes / bandwidth
/// by the margin, and is a part of that time that is worth it. What moves takes memory that later
/// items don't get, and what it leaves is not free before it is there. Nothing when an input is
/// unusable.
std::optional<std::vector<Migration>> place_items(const PlacementInput& input,
                                                  const PlacementLimits& limits);

}  // namespace fabricd

// Domains: which ranks share a cache and a NUMA node, and the tree along which many ranks hand
// small things on: from each rank to the first one of its cache, from there to the first one of its
// node, and on to rank 0; and back. So a line crosses between nodes once for each domain, not once
// for each rank, and no rank waits for more than a few others.
//
// Every rank shows its place when it attaches, and each builds the whole tree from all places. A
// place is input, but there is no wrong one: whatever the numbers, a tree comes out.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fabricshm {

/// Where a rank may run. Numbers are only compared; kAnywhere when its processors have more than
/// one of the kind.
struct RankPlace {
    static constexpr std::int32_t kAnywhere = -1;

    std::int32_t node = kAnywhere;   // NUMA node
    std::int32_t cache = kAnywhere;  // lowest processor that shares the last-level cache

    bool operator==(const RankPlace&) const = default;
};

/// "0-3,8" as the kernel writes it; what cannot be read ends the list.
std::vector<int> parse_cpu_list(const std::string& text);

/// The place of a thread that may run on `cpus` (ascending), as the files below `root` describe the
/// machine. kAnywhere for what they do not say. Reads some ten small files.
RankPlace place_of(std::span<const int> cpus, const std::string& root = "/sys/devices/system");

/// The place of the calling thread on this machine.
RankPlace own_place();

/// Ranks of a cache, caches of a node and nodes of the machine are taken in eights, so that no rank
/// waits for more than seven others of each kind at a time.
inline constexpr int kDomainRanks = 8;

/// One rank's place in the tree.
struct TreeNode {
    int parent = -1;  // -1: the root, which is rank 0
    int first = 0;    // position of the first rank below this one, which is itself
    int size = 1;     // ranks from here down, with this one; their positions follow each other
    int height = 0;   // 0: has no children
    std::vector<int> children;  // in the order of positions
};

/// The tree of a group. Positions number the ranks so that those of a domain follow each other.
struct Tree {
    std::vector<TreeNode> nodes;  // by rank
    std::vector<int> positions;   // by rank
    std::vector<int> ranks;       // by position
    bool in_rank_order = true;    // position and rank are the same everywhere
};

/// The same for the same places, on every rank. At least one rank, kWorldMax at most.
Tree build_tree(std::span<const RankPlace> places);

}  // namespace fabricshm

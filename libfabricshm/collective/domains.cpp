#include "libfabricshm/collective/domains.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace fabricshm {

namespace {

// The first line of a file, or nothing.
std::string line_of(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

bool all_in(std::span<const int> cpus, const std::vector<int>& list) {
    return std::ranges::includes(list, cpus);
}

// The processors that share the last-level cache of `cpu`.
std::vector<int> cache_neighbours(int cpu, const std::string& root) {
    constexpr int kMaxCaches = 16;
    const std::string caches = root + "/cpu/cpu" + std::to_string(cpu) + "/cache/index";
    std::vector<int> neighbours;
    int highest = 0;
    for (int index = 0; index < kMaxCaches; ++index) {
        const std::string cache = caches + std::to_string(index);
        const int level = std::atoi(line_of(cache + "/level").c_str());
        if (level == 0) break;
        if (level <= highest) continue;
        highest = level;
        neighbours = parse_cpu_list(line_of(cache + "/shared_cpu_list"));
    }
    return neighbours;
}

// The node that `cpu` belongs to, by the link in its folder; kAnywhere without one.
std::int32_t node_of(int cpu, const std::string& root) {
    std::error_code failure;
    const std::filesystem::path folder = root + "/cpu/cpu" + std::to_string(cpu);
    for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
        const std::string name = entry.path().filename();
        const bool numbered = name.starts_with("node") && name.size() > 4 && name.size() < 10 &&
                              std::all_of(name.begin() + 4, name.end(), ::isdigit);
        if (numbered) return std::atoi(name.c_str() + 4);
    }
    return RankPlace::kAnywhere;
}

using Ranks = std::vector<int>;

void adopt(Tree& tree, int above, int below) {
    TreeNode& parent = tree.nodes[static_cast<std::size_t>(above)];
    TreeNode& child = tree.nodes[static_cast<std::size_t>(below)];
    child.parent = above;
    parent.children.push_back(below);
    parent.size += child.size;
    parent.height = std::max(parent.height, child.height + 1);
}

// Makes the first of every eight ranks the parent of the others, until no more than `most` are
// left, and returns those. The ranks are at the top of what was joined before.
Ranks join(Tree& tree, Ranks tops, std::size_t most) {
    while (tops.size() > most) {
        const std::size_t count = tops.size();
        const std::size_t domains = (count + kDomainRanks - 1) / kDomainRanks;
        Ranks next;
        for (std::size_t domain = 0; domain < domains; ++domain) {
            // Of about equal sizes: of nine ranks none is left alone.
            const std::size_t begin = count * domain / domains;
            const std::size_t end = count * (domain + 1) / domains;
            for (std::size_t i = begin + 1; i < end; ++i) adopt(tree, tops[begin], tops[i]);
            next.push_back(tops[begin]);
        }
        tops = std::move(next);
    }
    return tops;
}

// Ranks by cache or node, in the order of the lowest rank of each.
template <typename Key>
std::vector<Ranks> grouped(const Ranks& ranks, const Key& key) {
    std::map<std::int32_t, std::size_t> index;
    std::vector<Ranks> groups;
    for (const int rank : ranks) {
        const auto [at, added] = index.try_emplace(key(rank), groups.size());
        if (added) groups.emplace_back();
        groups[at->second].push_back(rank);
    }
    return groups;
}

// Children were joined from the innermost domain outwards, each with whole subtrees behind the ones
// before: so positions count on through them.
void number(Tree& tree, int rank, int first) {
    TreeNode& node = tree.nodes[static_cast<std::size_t>(rank)];
    node.first = first;
    tree.positions[static_cast<std::size_t>(rank)] = first;
    tree.ranks[static_cast<std::size_t>(first)] = rank;
    tree.in_rank_order = tree.in_rank_order && rank == first;
    int next = first + 1;
    for (const int child : node.children) {
        number(tree, child, next);
        next += tree.nodes[static_cast<std::size_t>(child)].size;
    }
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
    constexpr long kMaxCpus = 1 << 16;  // more than any kernel's; a list is bounded by it
    std::vector<int> cpus;
    const char* at = text.c_str();
    while (*at != '\0') {
        char* end = nullptr;
        const long first = std::strtol(at, &end, 10);
        if (end == at || first < 0 || first >= kMaxCpus) break;
        long last = first;
        if (*end == '-') {
            at = end + 1;
            last = std::strtol(at, &end, 10);
            if (end == at || last < first || last >= kMaxCpus) break;
        }
        for (long cpu = first; cpu <= last; ++cpu) cpus.push_back(static_cast<int>(cpu));
        if (*end != ',') break;
        at = end + 1;
    }
    std::ranges::sort(cpus);
    return cpus;
}

RankPlace place_of(std::span<const int> cpus, const std::string& root) {
    RankPlace place;
    if (cpus.empty()) return place;
    const std::vector<int> neighbours = cache_neighbours(cpus.front(), root);
    if (all_in(cpus, neighbours)) place.cache = neighbours.front();
    const std::int32_t node = node_of(cpus.front(), root);
    if (node == RankPlace::kAnywhere) return place;
    const std::string list = root + "/node/node" + std::to_string(node) + "/cpulist";
    if (all_in(cpus, parse_cpu_list(line_of(list)))) place.node = node;
    return place;
}

RankPlace own_place() {
    cpu_set_t set;
    std::vector<int> cpus;
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
    return place_of(cpus);
}

Tree build_tree(std::span<const RankPlace> places) {
    FABRIC_CHECK(!places.empty());
    Tree tree;
    tree.nodes.resize(places.size());
    tree.positions.resize(places.size());
    tree.ranks.resize(places.size());
    const auto place = [&](int rank) { return places[static_cast<std::size_t>(rank)]; };
    Ranks others;
    for (std::size_t rank = 1; rank < places.size(); ++rank)
        others.push_back(static_cast<int>(rank));

    // One of each cache, then one of each node, and up to eight where there is only one of a kind.
    const auto nodes = grouped(others, [&](int rank) { return place(rank).node; });
    Ranks tops;
    for (const Ranks& in_node : nodes) {
        const auto caches = grouped(in_node, [&](int rank) { return place(rank).cache; });
        const std::size_t of_node = nodes.size() == 1 ? kDomainRanks : 1;
        const std::size_t of_cache = caches.size() == 1 ? of_node : 1;
        Ranks in_caches;
        for (const Ranks& in_cache : caches) {
            for (const int rank : join(tree, in_cache, of_cache)) in_caches.push_back(rank);
        }
        for (const int rank : join(tree, in_caches, of_node)) tops.push_back(rank);
    }
    // Rank 0 is above all and in no domain: it has the values of all to add up besides.
    for (const int rank : join(tree, tops, kDomainRanks)) adopt(tree, 0, rank);
    FABRIC_CHECK(tree.nodes[0].height <= kMaxTreeHeight);
    number(tree, 0, 0);
    return tree;
}

}  // namespace fabricshm

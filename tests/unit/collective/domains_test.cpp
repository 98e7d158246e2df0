// The places of ranks, from recorded machines, and the trees that come of them.

#include "libfabricshm/collective/domains.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricshm;

namespace {

/// What Linux says of a machine: the caches of some processors, from the innermost, and the nodes.
struct Recorded {
    struct Cache {
        int level;
        const char* shared_by;
    };
    struct Cpu {
        int number;
        int node;
        std::vector<Cache> caches;
    };
    std::vector<Cpu> cpus;
    std::vector<const char*> nodes;  // the processors of each

    void write(const std::string& root) const {
        namespace fs = std::filesystem;
        const auto say = [](const fs::path& path, const std::string& text) {
            fs::create_directories(path.parent_path());
            std::ofstream(path) << text << '\n';
        };
        for (const Cpu& cpu : cpus) {
            const fs::path folder = root + "/cpu/cpu" + std::to_string(cpu.number);
            for (std::size_t i = 0; i < cpu.caches.size(); ++i) {
                const fs::path cache = folder / "cache" / ("index" + std::to_string(i));
                say(cache / "level", std::to_string(cpu.caches[i].level));
                say(cache / "shared_cpu_list", cpu.caches[i].shared_by);
            }
            if (cpu.node >= 0) fs::create_directories(folder / ("node" + std::to_string(cpu.node)));
        }
        for (std::size_t node = 0; node < nodes.size(); ++node) {
            say(root + "/node/node" + std::to_string(node) + "/cpulist", nodes[node]);
        }
    }
};

// Two sockets of eight cores with two threads each; four cores to a last-level cache.
const Recorded kTwoSockets{{{0, 0, {{1, "0,16"}, {1, "0,16"}, {2, "0,16"}, {3, "0-3,16-19"}}},
                            {5, 0, {{1, "5,21"}, {1, "5,21"}, {2, "5,21"}, {3, "4-7,20-23"}}},
                            {8, 1, {{1, "8,24"}, {1, "8,24"}, {2, "8,24"}, {3, "8-11,24-27"}}}},
                           {"0-7,16-23", "8-15,24-31"}};

// A guest without a third level, and whose kernel says nothing of nodes.
const Recorded kSmallGuest{{{0, -1, {{1, "0"}, {1, "0"}, {2, "0-1"}}}}, {}};

RankPlace place_on(const Recorded& machine, const std::vector<int>& cpus) {
    const test_support::TemporaryDirectory directory;
    machine.write(directory.path());
    return place_of(cpus, directory.path());
}

/// What holds for every tree: each rank is reached once, positions of a subtree follow each other,
/// and none has many children.
void check_shape(const Tree& tree) {
    const int world = static_cast<int>(tree.nodes.size());
    CHECK(tree.nodes[0].parent == -1);
    CHECK(tree.nodes[0].size == world);
    CHECK(tree.nodes[0].height <= kMaxTreeHeight);
    bool in_order = true;
    for (int rank = 0; rank < world; ++rank) {
        const TreeNode& node = tree.nodes[static_cast<std::size_t>(rank)];
        CHECK(tree.ranks[static_cast<std::size_t>(node.first)] == rank);
        CHECK(tree.positions[static_cast<std::size_t>(rank)] == node.first);
        in_order = in_order && node.first == rank;
        int next = node.first + 1;
        int height = 0;
        for (const int child : node.children) {
            const TreeNode& below = tree.nodes[static_cast<std::size_t>(child)];
            CHECK(below.parent == rank);
            CHECK(below.first == next);
            next += below.size;
            height = std::max(height, below.height + 1);
        }
        CHECK(node.size == next - node.first);
        CHECK(node.height == height);
    }
    CHECK(tree.in_rank_order == in_order);
}

std::size_t most_children(const Tree& tree) {
    std::size_t most = 0;
    for (const TreeNode& node : tree.nodes) most = std::max(most, node.children.size());
    return most;
}

/// How many ranks have a parent on another node.
int crossings(const Tree& tree, const std::vector<RankPlace>& places) {
    int count = 0;
    for (std::size_t rank = 1; rank < places.size(); ++rank) {
        const auto parent = static_cast<std::size_t>(tree.nodes[rank].parent);
        count += places[rank].node != places[parent].node ? 1 : 0;
    }
    return count;
}

}  // namespace

TEST_SUITE("collective.domains") {
    TEST_CASE("lists of processors are read as the kernel writes them, and what follows is left") {
        CHECK(parse_cpu_list("0-3,8,10-11\n") == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
        CHECK(parse_cpu_list("").empty());
        CHECK(parse_cpu_list("x").empty());
        CHECK(parse_cpu_list("1,y,3") == std::vector<int>{1});
        CHECK(parse_cpu_list("7-5").empty());
        CHECK(parse_cpu_list("0-99999999999").empty());
    }

    TEST_CASE(
        "a rank's place is the last-level cache and the node that all its processors are in") {
        CHECK(place_on(kTwoSockets, {0}) == RankPlace{0, 0});
        CHECK(place_on(kTwoSockets, {5, 21}) == RankPlace{0, 4});
        CHECK(place_on(kTwoSockets, {8, 9, 10, 11}) == RankPlace{1, 8});
        CHECK(place_on(kSmallGuest, {0, 1}) == RankPlace{RankPlace::kAnywhere, 0});
    }

    TEST_CASE("a rank that may run in several caches, or anywhere, has no place there") {
        CHECK(place_on(kTwoSockets, {0, 1, 2, 3, 4, 5}) == RankPlace{0, RankPlace::kAnywhere});
        CHECK(place_on(kTwoSockets, {5, 8}) == RankPlace{});
        CHECK(place_of(std::vector<int>{3}, "/nonexistent") == RankPlace{});
        CHECK(place_of({}) == RankPlace{});
    }

    TEST_CASE("ranks without a place are taken in eights, in their order") {
        for (int world = 1; world <= 256; ++world) {
            CAPTURE(world);
            const std::vector<RankPlace> places(static_cast<std::size_t>(world));
            const Tree tree = build_tree(places);
            check_shape(tree);
            CHECK(tree.in_rank_order);
            CHECK(most_children(tree) <= 14);
        }
        const Tree tree = build_tree(std::vector<RankPlace>(64));
        CHECK(tree.nodes[0].children.size() == 8);
        CHECK(tree.nodes[0].height == 2);
    }

    TEST_CASE("one line for each node and each cache crosses, however ranks are dealt out") {
        // 64 ranks, one by one over 4 nodes of 2 caches.
        std::vector<RankPlace> places;
        for (int rank = 0; rank < 64; ++rank) places.push_back({rank % 4, rank % 8});
        const Tree tree = build_tree(places);
        check_shape(tree);
        CHECK(!tree.in_rank_order);
        CHECK(crossings(tree, places) == 3);
        int caches = 0;
        for (std::size_t rank = 1; rank < places.size(); ++rank) {
            const auto parent = static_cast<std::size_t>(tree.nodes[rank].parent);
            caches += places[rank].cache != places[parent].cache ? 1 : 0;
        }
        CHECK(caches <= 8);  // one of each cache, and rank 0 is above its own
        CHECK(most_children(tree) <= 8);
    }

    TEST_CASE("whatever ranks say of their places, a tree comes out") {
        for (const int world : {2, 9, 65, 193, 256}) {
            CAPTURE(world);
            std::vector<RankPlace> apart;
            std::vector<RankPlace> odd;
            std::vector<RankPlace> steep;
            for (int rank = 0; rank < world; ++rank) {
                apart.push_back({rank * 1000, rank * 1000});
                odd.push_back({-rank % 3 - 5, rank * rank % 7 - 3});
                // As high as it gets: 65 ranks in a cache, 64 caches more, 64 nodes more, and those
                // with the most below them last.
                const int back = world - 1 - rank;
                steep.push_back({back < 129 ? 0 : back, back < 65 ? 0 : back});
            }
            check_shape(build_tree(apart));
            check_shape(build_tree(odd));
            check_shape(build_tree(steep));
        }
    }
}

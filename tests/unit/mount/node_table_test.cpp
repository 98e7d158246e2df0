#include "fabricd/data/mount/node_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "fabricd/data/mount/handover.hpp"

using namespace fabricd;

namespace {

NodeFacts file(std::uint64_t stamp) {
    return {false, stamp, stamp * 10, 5};
}
const NodeFacts kFolder{true, 0, 0, 1};

}  // namespace

TEST_SUITE("mount.node_table") {
    TEST_CASE("a version of a name has one number, and another version another one") {
        auto handover = Handover::make().value();
        NodeTable nodes(handover.nodes());
        const Node first = nodes.take(kRootNode, "a", file(1)).value();
        const Node same = nodes.take(kRootNode, "a", file(1)).value();
        const Node other = nodes.take(kRootNode, "a", file(2)).value();
        CHECK(same.number == first.number);
        CHECK(other.number != first.number);
        CHECK(other.inode != first.inode);
        CHECK(nodes.find(other.number)->facts.bytes == 20);
        CHECK(nodes.count() == 2);
        // Two lookups, two references.
        nodes.release(first.number, 1);
        CHECK(nodes.find(first.number).ok());
        nodes.release(first.number, 1);
        CHECK_FALSE(nodes.find(first.number).ok());
        // The number may come again, of another generation.
        const Node later = nodes.take(kRootNode, "b", file(1)).value();
        CHECK((later.number != first.number || later.generation != first.generation));
    }

    TEST_CASE("a folder stays as long as something below it, and its listing changes no number") {
        auto handover = Handover::make().value();
        NodeTable nodes(handover.nodes());
        const Node folder = nodes.take(kRootNode, "folder", kFolder).value();
        const Node below = nodes.take(folder.number, std::string(255, 'x'), file(7)).value();
        CHECK(nodes.path_of(below.number).value() == "folder/" + std::string(255, 'x'));
        CHECK(nodes.path_of(kRootNode).value().empty());
        nodes.set_listing(folder.number, 99, 1234);
        CHECK(nodes.take(kRootNode, "folder", kFolder)->number == folder.number);
        CHECK(nodes.find(folder.number)->facts.stamp == 99);
        CHECK(nodes.find(folder.number)->facts.mtime_ns == 1234);
        CHECK(nodes.listed_folders().size() == 1);
        nodes.release(folder.number, 2);
        CHECK(nodes.path_of(below.number).ok());
        CHECK(nodes.children_of(folder.number).size() == 1);
        nodes.release(below.number, 1);
        CHECK_FALSE(nodes.find(folder.number).ok());
        CHECK(nodes.count() == 0);
        CHECK_FALSE(nodes.take(kRootNode, std::string(256, 'x'), file(1)).ok());
        CHECK_FALSE(nodes.take(folder.number, "none", file(1)).ok());
    }

    TEST_CASE("the next server finds the numbers of the last one") {
        auto handover = Handover::make().value();
        Node known;
        {
            NodeTable nodes(handover.nodes());
            known =
                nodes.take(nodes.take(kRootNode, "f", kFolder)->number, "name", file(3)).value();
        }
        NodeTable nodes(handover.nodes());
        const Node found = nodes.find(known.number).value();
        CHECK(found.name == "name");
        CHECK(found.inode == known.inode);
        CHECK(nodes.path_of(known.number).value() == "f/name");
        CHECK(nodes.take(found.parent, "name", file(3))->number == known.number);
    }

    TEST_CASE("releases of more than there is, of the root and of nothing do no harm") {
        auto handover = Handover::make().value();
        NodeTable nodes(handover.nodes());
        const Node node = nodes.take(kRootNode, "a", file(1)).value();
        nodes.release(node.number, 1000);
        nodes.release(node.number, 1);
        nodes.release(kRootNode, 1000);
        nodes.release(0, 1);
        nodes.release(~std::uint64_t{0}, 1);
        CHECK(nodes.find(kRootNode).ok());
        CHECK_FALSE(nodes.find(node.number).ok());
        CHECK(nodes.take(kRootNode, "a", file(1)).ok());
    }

    TEST_CASE("a random sequence agrees with a map") {
        auto handover = Handover::make().value();
        NodeTable nodes(handover.nodes());
        std::mt19937_64 random(5);
        using Key = std::tuple<std::string, std::uint64_t>;
        std::map<Key, std::pair<NodeNumber, std::uint64_t>> model;
        for (int turn = 0; turn < 20'000; ++turn) {
            const std::string name(1 + random() % 200, static_cast<char>('a' + random() % 4));
            const Key key{name, 1 + random() % 3};
            const auto known = model.find(key);
            if (random() % 5 < 3) {
                const Node node = nodes.take(kRootNode, name, file(std::get<1>(key))).value();
                if (known != model.end()) CHECK(known->second.first == node.number);
                model[key] = {node.number, (known != model.end() ? known->second.second : 0) + 1};
            } else if (known != model.end()) {
                nodes.release(known->second.first, 1);
                if (--known->second.second == 0) model.erase(known);
            }
        }
        CHECK(nodes.count() == model.size());
        std::set<NodeNumber> numbers;
        for (const auto& [key, value] : model) {
            const Node node = nodes.find(value.first).value();
            CHECK(node.name == std::get<0>(key));
            CHECK(node.facts.stamp == std::get<1>(key));
            numbers.insert(node.number);
        }
        CHECK(numbers.size() == model.size());
    }
}

#include "libfabricshm/machine/far_node.hpp"

#include <doctest/doctest.h>

#include "tests/unit/machine/host_tree.hpp"

using namespace fabricshm;

namespace {

struct Host {
    void add(int id, const std::string& cpus, Bytes total, const std::string& distances) {
        found.nodes.push_back({id, cpus, total, 0, 0, 0, false, {}});
        tree.write("sys/devices/system/node/node" + std::to_string(id) + "/distance", distances);
    }
    std::optional<FarNode> far() const { return find_far_node(found, tree.files()); }

    HostTree tree;
    Discovery found;
};

}  // namespace

TEST_SUITE("machine.far_node") {
    TEST_CASE("a machine with one memory node has no far one") {
        Host host;
        host.add(0, "0-1", kGiB, "10");
        CHECK_FALSE(host.far());
        host.add(1, "2-3", 0, "21 10");  // without memory
        CHECK_FALSE(Host().far());
        CHECK_FALSE(host.far());
    }

    TEST_CASE("on two sockets the pool goes to the second, the ranks to the first") {
        Host host;
        host.add(0, "0-7", kGiB, "10 21");
        host.add(1, "8-15", kGiB, "21 10");
        REQUIRE(host.far());
        CHECK(host.far()->node == 1);
        CHECK(host.far()->near_node == 0);
        CHECK(host.far()->distance == 21);
    }

    TEST_CASE("the farthest pair wins, and node numbers may have gaps") {
        Host host;
        host.add(0, "0-7", kGiB, "10 16 32");
        host.add(2, "8-15", kGiB, "16 10 22");
        host.add(5, "16-23", kGiB, "32 22 10");
        REQUIRE(host.far());
        CHECK(host.far()->node == 5);
        CHECK(host.far()->near_node == 0);
        CHECK(host.far()->distance == 32);
    }

    TEST_CASE("a host whose kernel reports no distances has no far node") {
        Host host;
        host.found.nodes.push_back({0, "0-7", kGiB, 0, 0, 0, false, {}});
        host.found.nodes.push_back({1, "8-15", kGiB, 0, 0, 0, false, {}});
        CHECK_FALSE(host.far());
    }
}

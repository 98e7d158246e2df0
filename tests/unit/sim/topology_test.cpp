#include "emu/sim/topology.hpp"

#include <doctest/doctest.h>

#include "emu/sim/topology_preset.hpp"

using namespace emu;

TEST_SUITE("sim.topology") {
    TEST_CASE("every shape has as many devices as it was asked for, and no complaint") {
        for (const char* shape : {"star", "tree", "chain"}) {
            for (const int devices : {2, 3, 64, 200, 512}) {
                TopologyWish wish;
                wish.shape = shape;
                wish.devices = devices;
                const auto topology = make_topology(wish);
                REQUIRE(topology.ok());
                CHECK(topology->devices().size() == static_cast<std::size_t>(devices));
                CHECK(topology->complaint() == "");
            }
        }
    }

    TEST_CASE("sizes and shapes that cannot be are refused") {
        TopologyWish wish;
        wish.devices = 1;
        CHECK_FALSE(make_topology(wish).ok());
        wish.devices = 8193;
        CHECK_FALSE(make_topology(wish).ok());
        wish.devices = 513;
        wish.shape = "chain";
        CHECK_FALSE(make_topology(wish).ok());
        wish.shape = "moebius";
        CHECK_FALSE(make_topology(wish).ok());
    }

    TEST_CASE("a complaint names the node") {
        TopologyWish wish;
        Topology topology = make_topology(wish).value();
        topology.nodes.back().media = -1;
        CHECK(topology.complaint() == "pool[0]: a value is negative or too large");
        topology = make_topology(wish).value();
        topology.nodes[3].parent = 7;
        CHECK(topology.complaint() == "device[2]: its parent has to come before it");
    }
}

#include "emu/sim/topology.hpp"

#include <doctest/doctest.h>

#include "emu/sim/topology_preset.hpp"

using namespace emu;

TEST_SUITE("sim.topology") {
    TEST_CASE("every shape has as many devices as it was asked for, and no error message") {
        for (const char* shape : {"star", "tree", "chain"}) {
            for (const int devices : {2, 3, 64, 200, 512}) {
                TopologySpec spec;
                spec.shape = shape;
                spec.devices = devices;
                const auto topology = make_topology(spec);
                REQUIRE(topology.ok());
                CHECK(topology->devices().size() == static_cast<std::size_t>(devices));
                CHECK(topology->error_message() == "");
            }
        }
    }

    TEST_CASE("sizes and shapes that cannot be are refused") {
        TopologySpec spec;
        spec.devices = 1;
        CHECK_FALSE(make_topology(spec).ok());
        spec.devices = 8193;
        CHECK_FALSE(make_topology(spec).ok());
        spec.devices = 513;
        spec.shape = "chain";
        CHECK_FALSE(make_topology(spec).ok());
        spec.shape = "moebius";
        CHECK_FALSE(make_topology(spec).ok());
    }

    TEST_CASE("an error message names the node") {
        TopologySpec spec;
        Topology topology = make_topology(spec).value();
        topology.nodes.back().media = -1;
        CHECK(topology.error_message() == "pool[0]: a value is negative or too large");
        topology = make_topology(spec).value();
        topology.nodes[3].parent = 7;
        CHECK(topology.error_message() == "device[2]: its parent has to come before it");
    }
}

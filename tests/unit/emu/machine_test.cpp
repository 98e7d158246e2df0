#include "emu/memory/machine.hpp"

#include <doctest/doctest.h>

#include "emu/memory/figures.hpp"

using namespace emu;
using fabricshm::LinkImage;

namespace {

Stretch stretch(std::uint64_t latency, double gb) {
    Stretch own;
    own.read_latency_ns = latency;
    own.write_latency_ns = latency + 10;
    own.read_bandwidth = gb * 1e9;
    own.write_bandwidth = gb * 1e9;
    return own;
}

// Two hosts behind ports of a switch, and two memory boxes; host1 also has a slow way around.
EmulatedMachine two_hosts() {
    EmulatedMachine machine;
    machine.name = "two_hosts";
    machine.nodes = {"host0", "host1"};
    machine.devices = {{"box0", stretch(100, 40)}, {"box1", stretch(140, 40)}};
    machine.links = {
        {"port0", "host0", "switch", stretch(200, 30)},
        {"port1", "switch", "host1", stretch(250, 20)},
        {"down0", "switch", "box0", stretch(50, 50)},
        {"down1", "box1", "switch", stretch(50, 50)},
        {"around", "host1", "box1", stretch(5000, 1)},
    };
    return machine;
}

std::string error_message_about(const EmulatedMachine& machine) {
    LinkImage links;
    return resolve(machine, links).value_or("");
}

}  // namespace

TEST_SUITE("emu.machine") {
    TEST_CASE("latencies along the shortest way add up, to the farthest device") {
        LinkImage links;
        REQUIRE_FALSE(resolve(two_hosts(), links));
        CHECK(links.routes[0].read_latency_ns == 200 + 50 + 140);
        CHECK(links.routes[0].write_latency_ns == 210 + 60 + 150);
        CHECK(links.routes[1].read_latency_ns == 250 + 50 + 140);
        CHECK(links.channel_count == 7);
    }

    TEST_CASE("the pool is interleaved: each device gets its share, the port carries it all") {
        LinkImage links;
        REQUIRE_FALSE(resolve(two_hosts(), links));
        const auto share = [&](int node, const std::string& name) -> int {
            const auto& route = links.routes[node];
            for (std::uint32_t i = 0; i < route.hop_count; ++i) {
                if (name == links.channels[route.hops[i].channel].name) {
                    return route.hops[i].permille;
                }
            }
            return 0;
        };
        CHECK(share(0, "port0") == 1000);
        CHECK(share(0, "port1") == 0);
        CHECK(share(0, "box0") == 500);
        CHECK(share(1, "down1") == 500);
        CHECK(share(1, "around") == 0);
        CHECK(rated_figures(links, 0).read_bandwidth == doctest::Approx(30e9));
        CHECK(rated_figures(links, 1).read_bandwidth == doctest::Approx(20e9));
        CHECK(links.channels[0].nodes == 1u);  // port0
        CHECK(links.channels[2].nodes == 3u);  // down0
    }

    TEST_CASE("three devices share without a byte left over") {
        EmulatedMachine machine = two_hosts();
        machine.devices.push_back({"box2", stretch(1, 1)});
        machine.links.push_back({"down2", "switch", "box2", stretch(1, 1)});
        LinkImage links;
        REQUIRE_FALSE(resolve(machine, links));
        CHECK(links.routes[0].hops[0].permille == 1000);
    }

    TEST_CASE("slow motion stretches every time and no name") {
        EmulatedMachine machine = two_hosts();
        machine.slow_motion = 4;
        LinkImage links;
        REQUIRE_FALSE(resolve(machine, links));
        CHECK(links.routes[0].read_latency_ns == 4 * 390);
        CHECK(links.channels[0].read_ns_per_byte == doctest::Approx(4.0 / 30));
        CHECK(rated_figures(links, 0).read_latency_ns == doctest::Approx(390));
        CHECK(describe_links(links) ==
              "read 390 ns, 30 GB/s; write 420 ns, 30 GB/s; 2 nodes; slow motion 4x");
    }

    TEST_CASE("what can't be resolved is named") {
        EmulatedMachine machine = two_hosts();
        machine.links.erase(machine.links.begin() + 2);
        CHECK(error_message_about(machine) ==
              "two_hosts: no link leads from node \"host0\" to device \"box0\"");
        machine = two_hosts();
        machine.devices[1].name = "box0";
        CHECK(error_message_about(machine) == "two_hosts: the name \"box0\" is used twice");
        machine = two_hosts();
        machine.nodes.clear();
        CHECK(error_message_about(machine).find("at least one node") != std::string::npos);
        machine = two_hosts();
        for (int i = 0; i < 20; ++i) machine.nodes.push_back("more" + std::to_string(i));
        CHECK(error_message_about(machine).find("more than 8 nodes") != std::string::npos);
        machine = two_hosts();
        machine.name = "two hosts";
        CHECK(error_message_about(machine).find("other characters") != std::string::npos);
        machine = two_hosts();
        machine.links[0].own.read_latency_ns = 2'000'000'000;
        CHECK(error_message_about(machine).find("above 1 s") != std::string::npos);
        machine = two_hosts();
        machine.links[0].own.read_bandwidth = 1000;
        CHECK(error_message_about(machine).find("below 1 MB/s") != std::string::npos);
    }
}

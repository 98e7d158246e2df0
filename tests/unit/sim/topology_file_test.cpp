#include "emu/sim/topology_file.hpp"

#include <doctest/doctest.h>

using namespace emu;

namespace {

constexpr const char* kTwoRacks = R"(
name = "two racks"
placement = "home"
lines_in_flight = 4

[[device]]
name = "gpu"
parent = "host"
count = 4
read = "26 GB/s"
write = "20 GB/s"
bandwidth = "32 GB/s"
latency = "50ns"
window = "64KiB"

[[switch]]
name = "spine"

[[switch]]
name = "leaf"
parent = "spine"
count = 2
bandwidth = "128 GB/s"

[[host]]
name = "host"
parent = "leaf"
count = 2
cores = 8

[[pool]]
name = "box"
parent = "leaf"
media = "60 GB/s"
media_latency = "150ns"

[[override]]
name = "gpu[5]"
speed = 0.5
)";

std::string error_message_of(const std::string& text) {
    const auto parsed = parse_topology(text, "t.toml");
    const auto* error_message = std::get_if<std::string>(&parsed);
    return error_message != nullptr ? *error_message : "";
}

}  // namespace

TEST_SUITE("sim.topology_file") {
    TEST_CASE("groups are made once for each node of their parent, in any order of the file") {
        const auto parsed = parse_topology(kTwoRacks, "t.toml");
        const auto* topology = std::get_if<Topology>(&parsed);
        REQUIRE(topology != nullptr);
        CHECK(topology->name == "two racks");
        CHECK(topology->devices().size() == 16);
        CHECK(topology->homes().size() == 2);
        CHECK(topology->lines_in_flight == 4);
        const Node& slow = topology->nodes[static_cast<std::size_t>(topology->devices()[5])];
        CHECK(slow.name == "gpu[5]");
        CHECK(slow.speed == 0.5);
        CHECK(slow.read == 26e9);
        CHECK(slow.up == 32e9);
        CHECK(slow.latency == doctest::Approx(50e-9));
        CHECK(slow.window_bytes == 65536);
    }

    TEST_CASE("an error message names file, line and key") {
        CHECK(error_message_of("name = ").find("t.toml:1: ") == 0);
        CHECK(error_message_of("speed = 3\n") == "t.toml:1: unknown key speed");
        const std::string text(kTwoRacks);
        CHECK(error_message_of(text + "[[pool]]\nname = \"p\"\nparent = \"nowhere\"\n") ==
              "t.toml:40: no node of that name is the parent");
        CHECK(error_message_of(text + "[[override]]\nname = \"gpu[99]\"\nspeed = 1\n") ==
              "t.toml:40: override: there is no node \"gpu[99]\"");
        CHECK(error_message_of(text + "[[pool]]\nname = \"p\"\nparent = \"leaf\"\nmedia = 60\n") ==
              "t.toml:43: media: unknown key, or a value without a unit or of another kind");
    }

    TEST_CASE("a file without devices or pools is no topology") {
        CHECK(error_message_of("[[switch]]\nname = \"s\"\n").find("0 devices") !=
              std::string::npos);
        CHECK(std::holds_alternative<std::string>(read_topology_file("no such file")));
    }

    TEST_CASE("what a file can ask for is bounded: nodes in all, and the speed of one") {
        std::string many = "[[switch]]\nname = \"s\"\n";
        for (int i = 0; i < 20; ++i) {
            many +=
                "[[host]]\nname = \"h" + std::to_string(i) + "\"\nparent = \"s\"\ncount = 8000\n";
        }
        CHECK(error_message_of(many).find("1 to 100000 in all") != std::string::npos);
        CHECK(error_message_of("[[device]]\nname = \"d\"\nspeed = inf\n").find("speed") !=
              std::string::npos);
    }
}

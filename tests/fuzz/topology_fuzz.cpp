// A topology file of the simulator. What is accepted is a tree whose parts can be counted with.

#include "emu/sim/topology_file.hpp"

#include <cmath>

#include "tests/fuzz/fuzz.hpp"

using namespace emu;

namespace {

void require_sound(const Topology& topology) {
    FUZZ_REQUIRE(topology.error_message().empty());
    FUZZ_REQUIRE(!topology.nodes.empty() && topology.nodes.front().parent == -1);
    FUZZ_REQUIRE(!topology.devices().empty() && !topology.homes().empty());
    for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
        const Node& node = topology.nodes[i];
        FUZZ_REQUIRE(i == 0 || (node.parent >= 0 && node.parent < static_cast<int>(i)));
        for (const double value :
             {node.up, node.down, node.inside, node.read, node.write, node.media, node.latency,
              node.media_latency, node.window_bytes}) {
            FUZZ_REQUIRE(std::isfinite(value) && value >= 0);
        }
        FUZZ_REQUIRE(std::isfinite(node.speed) && node.speed > 0 && node.cores >= 0);
    }
}

void run(fuzz::Data input) {
    const auto parsed = parse_topology(fuzz::Input::text_of(input), "t.toml");
    if (const auto* error_message = std::get_if<std::string>(&parsed)) {
        FUZZ_REQUIRE(error_message->starts_with("t.toml"));
    } else {
        require_sound(std::get<Topology>(parsed));
    }
}

std::vector<fuzz::Buffer> seeds() {
    const std::string racks =
        "[[switch]]\nname = \"spine\"\n[[switch]]\nname = \"leaf\"\nparent = \"spine\"\n"
        "count = 2\nbandwidth = \"128 GB/s\"\n[[host]]\nname = \"host\"\nparent = \"leaf\"\n"
        "count = 2\ncores = 8\n[[device]]\nname = \"gpu\"\nparent = \"host\"\ncount = 4\n"
        "read = \"26 GB/s\"\nwrite = \"20 GB/s\"\nlatency = \"50ns\"\nwindow = \"64KiB\"\n";
    return {fuzz::buffer_of("name = \"two racks\"\nplacement = \"home\"\nlines_in_flight = 4\n" +
                            racks +
                            "[[pool]]\nname = \"box\"\nparent = \"leaf\"\nmedia = \"60 GB/s\"\n"
                            "media_latency = \"150ns\"\n[[override]]\nname = \"gpu[5]\"\n"
                            "speed = 0.5\n"),
            fuzz::buffer_of("placement = \"device\"\n" + racks + "media = \"1 TB/s\"\n")};
}

const fuzz::Registered kTarget({"topology", run, seeds});

}  // namespace

#include "fabricd/config/machine_file.hpp"

#include <doctest/doctest.h>

#include "emu/memory/figures.hpp"

using namespace fabricd;
using emu::EmulatedMachine;

namespace {

std::string error_message(const std::string& text) {
    EmulatedMachine machine;
    return read_machine(text, "m.toml", machine).value_or("");
}

const std::string kNode = "nodes = ['host']\n";
const std::string kDevice = "[[device]]\nname = 'box'\n";
const std::string kLink = "[[link]]\nname = 'port'\nfrom = 'host'\nto = 'box'\n";

}  // namespace

TEST_SUITE("fabricd.machine_file") {
    TEST_CASE("the example that is shipped is read") {
        EmulatedMachine machine;
        REQUIRE_FALSE(find_machine(FABRIC_SOURCE_DIR "/examples/machines/two_hosts.toml", machine));
        CHECK(machine.name == "two_hosts");
        CHECK_FALSE(machine.coherent);
        fabricshm::LinkImage links;
        REQUIRE_FALSE(emu::resolve(machine, links));
        CHECK(links.node_count == 2);
        CHECK(links.routes[1].read_latency_ns == 120 + 270 + 90);
        CHECK(links.routes[0].write_latency_ns == 120 + 300 + 90);
        CHECK(emu::rated_figures(links, 0).read_bandwidth == doctest::Approx(26e9));
        CHECK(links.channels[4].knee_ranks == 4);
        CHECK(links.channels[4].knee_loss_permille == 50);
    }

    TEST_CASE("every key of a stretch is taken, and a file without a name has that of the file") {
        EmulatedMachine machine;
        REQUIRE_FALSE(read_machine(kNode + kDevice + kLink +
                                       "latency = '1us'\nwrite_latency = '2us'\n"
                                       "bandwidth = '500 MB/s'\nread_bandwidth = '1.5GB/s'\n"
                                       "half_duplex = true\nknee_ranks = 3\nknee_loss = '2.5%'\n",
                                   "folder/tiny.toml", machine));
        CHECK(machine.name == "tiny");
        const emu::Stretch& own = machine.links[0].own;
        CHECK(own.read_latency_ns == 1000);
        CHECK(own.write_latency_ns == 2000);
        CHECK(own.read_bandwidth == doctest::Approx(1.5e9));
        CHECK(own.write_bandwidth == doctest::Approx(0.5e9));
        CHECK(own.half_duplex);
        CHECK(own.knee_ranks == 3);
        CHECK(own.knee_loss_permille == 25);
    }

    TEST_CASE("a share of the accesses may be late, by a time that slow motion stretches") {
        EmulatedMachine machine;
        REQUIRE_FALSE(read_machine(
            "tail_latency = '190ns'\ntail_share = '1.5%'\nseed = 7\n" + kNode + kDevice + kLink,
            "m.toml", machine));
        machine.slow_motion = 10;
        fabricshm::LinkImage links;
        REQUIRE_FALSE(emu::resolve(machine, links));
        CHECK(links.seed == 7);
        CHECK(links.routes[0].tail_permille == 15);
        CHECK(links.routes[0].tail_latency_ns == 1900);
        CHECK(emu::describe_links(links).find("1.5 % of the accesses up to 190 ns later") !=
              std::string::npos);
        CHECK(error_message("seed = 65536\n") == "m.toml:1: seed takes a number from 0 to 65535");
        CHECK(error_message("tail_share = 1\n") ==
              "m.toml:1: tail_share takes a share of the accesses, such as \"1%\"");
        CHECK(error_message("tail_latency = '1'\n") ==
              "m.toml:1: tail_latency takes a time with its unit, such as \"190ns\"");
    }

    TEST_CASE("a mistake is one line with file, line and what would be right") {
        CHECK(error_message("nodes = 3\n").find("m.toml:1: nodes takes a list") == 0);
        CHECK(error_message(kNode + "speed = 1\n").find("m.toml:2: unknown key \"speed\"") == 0);
        CHECK(error_message(kNode + "coherent = 'no'\n").find("m.toml:2: coherent takes") == 0);
        CHECK(error_message(kNode + "device = 'box'\n").find("m.toml:2: write [[device]]") == 0);
        CHECK(error_message(kNode + kDevice + "latency = 640\n")
                  .find("m.toml:4: device.latency takes a "
                        "time") == 0);
        CHECK(error_message(kNode + kDevice + "bandwidth = '10GiB'\n")
                  .find("m.toml:4: device.bandwidth takes a rate") == 0);
        CHECK(error_message(kNode + kDevice + "knee_loss = '101%'\n")
                  .find("device.knee_loss takes") != std::string::npos);
        CHECK(error_message(kNode + kDevice + "knee_ranks = 0\n").find("device.knee_ranks takes") !=
              std::string::npos);
        CHECK(error_message(kNode + kDevice + "weight = '1kg'\n")
                  .find("m.toml:4: unknown key \"device.weight\"") == 0);
        CHECK(error_message(kNode + kDevice + "[[link]]\nname = 'port'\nfrom = 'host'\n")
                  .find("this link lacks \"to\"") != std::string::npos);
        CHECK(error_message(kNode + kDevice).find("m.toml: m: no link leads from node") == 0);
        CHECK(error_message("nodes = [\n").find("m.toml") == 0);
        CHECK(error_message(kNode + kDevice + kLink) == "");
    }

    TEST_CASE("a machine is a preset or a path, and other names get the list of presets") {
        EmulatedMachine machine;
        REQUIRE_FALSE(find_machine("cxl_switch", machine));
        CHECK(machine.name == "cxl_switch");
        CHECK(find_machine("cxl_swich", machine)->find("mhd_niagara2") != std::string::npos);
        CHECK(*find_machine("/nowhere/m.toml", machine) == "/nowhere/m.toml: can't be read");
        CHECK(*find_machine("nowhere.toml", machine) == "nowhere.toml: can't be read");
    }

    TEST_CASE("rates have powers of a thousand") {
        CHECK(parse_bandwidth("10.1GB/s").value() == doctest::Approx(10.1e9));
        CHECK(parse_bandwidth("3 TB/s").value() == doctest::Approx(3e12));
        CHECK(parse_bandwidth("7kB/s").value() == doctest::Approx(7e3));
        for (const char* text : {"", "GB/s", "10", "10GiB/s", "-1GB/s", "0GB/s", "infGB/s"}) {
            CAPTURE(text);
            CHECK_FALSE(parse_bandwidth(text));
        }
    }
}

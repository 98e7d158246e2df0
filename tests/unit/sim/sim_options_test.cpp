#include "emu/sim/sim_options.hpp"

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "emu/sim/sim_command.hpp"
#include "tests/support/manual_page.hpp"

using namespace emu;

namespace {

std::optional<SimExit> parse(std::vector<const char*> words, SimOptions& options) {
    words.insert(words.begin(), "fabric-sim");
    return parse_sim_options(static_cast<int>(words.size()), words.data(), options);
}

std::string error_message(const std::vector<const char*>& words) {
    SimOptions options;
    const auto exit = parse(words, options);
    return exit && exit->code == 2 ? exit->text : "";
}

}  // namespace

TEST_SUITE("sim.sim_options") {
    TEST_CASE("each command is in the help and in the manual page, and no other one is there") {
        std::multiset<std::string> names;
        SimOptions unused;
        const std::string help = parse({"--help"}, unused)->text;
        for (const SimCommand& command : sim_commands()) {
            CAPTURE(command.name);
            names.insert(command.name);
            CHECK(help.find(command.help) != std::string::npos);
            CHECK(find_sim_command(command.name) == &command);
            SimOptions options;
            CHECK_FALSE(parse({command.name, "--json"}, options));
            CHECK(options.command == command.name);
        }
        CHECK(names ==
              test_support::commands_of_manual(FABRIC_SOURCE_DIR "/docs/man/fabric-sim.1"));
        CHECK(find_sim_command("guess") == nullptr);
    }

    TEST_CASE("lists, units and names become values") {
        SimOptions options;
        CHECK_FALSE(parse(
            {"allreduce", "--devices", "64", "--sizes", "8KiB,1MiB", "--algorithms", "ring,direct",
             "--trigger", "sync", "--placement", "device", "--link", "cxl_box", "--csv"},
            options));
        CHECK(options.command == "allreduce");
        CHECK(options.spec.devices == 64);
        CHECK(options.sizes == std::vector<fabricshm::Bytes>{8192, 1 << 20});
        CHECK(options.algorithms.size() == 2);
        CHECK(options.trigger == fabricshm::Trigger::kSync);
        CHECK(options.spec.placement == Placement::kDevice);
        CHECK(options.spec.link.read == 60e9);
        CHECK(options.format == Format::kCsv);
    }

    TEST_CASE("one line names the option that is wrong, with exit code 2") {
        CHECK(error_message({}) == "fabric-sim: a command is missing (fabric-sim --help)\n");
        CHECK(error_message({"allreduce", "--sizes", "8,fast"}).find("--sizes: \"fast\"") !=
              std::string::npos);
        CHECK(error_message({"allreduce", "--devices", "1"}).find("--devices") !=
              std::string::npos);
        CHECK(error_message({"allreduce", "--devices", "9000"}).find("--devices") !=
              std::string::npos);
        CHECK(error_message({"allreduce", "--link", "wet string"}).find("--link") !=
              std::string::npos);
        CHECK(error_message({"allreduce", "--json", "--csv"}).find("--json") != std::string::npos);
        CHECK(error_message({"stragglers", "--late", "3"}).find("--late") != std::string::npos);
        CHECK(error_message({"bandwidth", "--model", "mine"}).find("--model") != std::string::npos);
        CHECK(error_message({"dance"}) != "");
    }

    TEST_CASE("help and version end with 0") {
        SimOptions options;
        CHECK(parse({"--help"}, options)->code == 0);
        CHECK(parse({"stragglers", "--help"}, options)->text.find("--late") != std::string::npos);
        CHECK(parse({"--version"}, options)->text.find("fabric-sim ") == 0);
    }

    TEST_CASE("a topology is a shape or a file, and a file has its own devices") {
        SimOptions options;
        options.shape = "no such file.toml";
        CHECK(std::holds_alternative<std::string>(topology_of(options)));
        options.devices = {8};
        CHECK(std::get<std::string>(topology_of(options)).find("--devices") == 0);
        SimOptions star;
        CHECK(std::get<Topology>(topology_of(star)).devices().size() == 8);
    }
}

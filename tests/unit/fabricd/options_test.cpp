#include "fabricd/config/options.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

using namespace fabricd;
using namespace fabricshm;

namespace {

ErrorMessage parse(std::vector<const char*> words, Options& options) {
    words.insert(words.begin(), "fabricd");
    return parse_options(static_cast<int>(words.size()), words.data(), options);
}

std::string error_message(std::vector<const char*> words) {
    Options options;
    return parse(std::move(words), options).value_or("");
}

/// A configuration file that goes with the test.
struct File {
    explicit File(const char* text) {
        const int fd = ::mkstemp(path);
        ::close(fd);
        std::ofstream(path) << text;
    }
    ~File() { std::remove(path); }
    char path[32] = "/tmp/fabric-options-XXXXXX";
};

}  // namespace

TEST_SUITE("fabricd.options") {
    TEST_CASE("every key is an option, and options win over the file") {
        const File file("[pool]\ncapacity = '1GiB'\nnuma_node = 2\n");
        Options options;
        REQUIRE_FALSE(parse(
            {"--config", file.path, "--pool-capacity", "4GiB", "--log-level=debug", "--foreground"},
            options));
        CHECK(options.config.pool.capacity == 4 * kGiB);
        CHECK(options.config.pool.numa_node == 2);
        CHECK(options.config.log.level == "debug");
    }

    TEST_CASE("of an option given twice the last one counts") {
        Options options;
        REQUIRE_FALSE(parse({"--log-level=debug", "--log-level=error"}, options));
        CHECK(options.config.log.level == "error");
    }

    TEST_CASE("negative numbers and lists are values, not options") {
        Options options;
        REQUIRE_FALSE(
            parse({"--pool-numa-node", "-1", "--server-allow-uids", "1000,1001"}, options));
        CHECK(options.config.pool.numa_node == -1);
        CHECK(options.config.server.allow_uids == std::vector<std::uint32_t>{1000, 1001});
    }

    TEST_CASE("an unknown option, a missing value and a bad value are one line that names them") {
        for (const auto& words : std::vector<std::vector<const char*>>{
                 {"--no-such"}, {"stray"}, {"--pool-capacity"}, {"--config", "/nowhere/x"}}) {
            const std::string line = error_message(words);
            CAPTURE(line);
            CHECK(line.find(words.back()) != std::string::npos);
            CHECK(line.find('\n') == std::string::npos);
        }
        CHECK(error_message({"--log-level", "loud"}).find("command line: --log-level: bad value") ==
              0);
    }

    TEST_CASE("an empty file or machine is no default, while an empty key is a value") {
        CHECK(error_message({"--config", ""}).find("--config: the value is empty") !=
              std::string::npos);
        CHECK(error_message({"--emulate", ""}).find("--emulate: the value is empty") !=
              std::string::npos);
        Options options;
        const File file("[log]\nfile = '/tmp/x.log'\n");
        REQUIRE_FALSE(parse({"-c", file.path, "--log-file", ""}, options));
        CHECK(options.config.log.file.empty());
    }

    TEST_CASE("an option under its former name is one line that says the name that it has now") {
        for (const char* given : {"--control-quota-least", "--control-quota-least=0.5"}) {
            CHECK(error_message({given}) ==
                  "command line: --control-quota-least is called --control-quota-min now");
        }
        CHECK(error_message({"--control-share-least", "0.5"}) ==
              "command line: --control-share-least is called --control-share-min now");
    }

    TEST_CASE("a mistake in the file is named with file and line") {
        const File file("[log]\n# a comment\nlevle = 'info'\n");
        CHECK(error_message({"-c", file.path}) ==
              std::string(file.path) + ":3: unknown key \"log.levle\" (did you mean log.level?)");
    }

    TEST_CASE("--format and --take-over are on the command line only, and for a dax pool only") {
        Options options;
        CHECK(parse({"--format"}, options));
        CHECK(parse({"--take-over"}, options));
        Options dax;
        CHECK_FALSE(parse({"--format", "--take-over", "--pool-backend", "dax"}, dax));
        CHECK(dax.config.pool.dax_format);
        CHECK(dax.config.pool.dax_take_over);
    }

    TEST_CASE("--emulate names the machine, or asks for the list") {
        const File file("[emulate]\nmachine = 'rdma'\nslow_motion = 3\n");
        Options options;
        REQUIRE_FALSE(parse({"-c", file.path, "--emulate", "cxl_box"}, options));
        CHECK(options.config.emulate.machine == "cxl_box");
        CHECK(options.config.emulate.slow_motion == 3);
        Options list;
        CHECK_FALSE(parse({"--emulate", "list"}, list));
        CHECK(list.list_presets);
        CHECK(error_message({"--emulate-slow-motion", "2"}).find("emulate.machine") !=
              std::string::npos);
        CHECK(
            error_message({"--emulate", "rdma", "--pool-backend", "dax"}).find("emulate.machine") !=
            std::string::npos);
    }

    TEST_CASE("the help names every option with its default") {
        const std::string help = help_text();
        for (const auto& key : config_keys()) {
            CAPTURE(key.name);
            CHECK(help.find("  " + option_name(key) + " VALUE\n") != std::string::npos);
        }
    }
}

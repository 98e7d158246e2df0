#include "fabricd/config/config.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>

using namespace fabricd;
using namespace fabricshm;

namespace {

std::string error_message(const std::string& toml) {
    Config config;
    return read_toml(config, toml, "f.toml").value_or("");
}

std::string contents(const std::string& path) {
    std::ifstream file(std::string(FABRIC_SOURCE_DIR "/") + path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

TEST_SUITE("fabricd.config") {
    TEST_CASE("a file sets sizes, durations, numbers, flags, modes and lists") {
        Config config;
        const auto bad = read_toml(config,
                                   "[pool]\nbackend = 'emu'\ncapacity = '8GiB'\nnuma_node = 3\n"
                                   "[server]\nsocket_mode = '0660'\nallow_uids = [1000, 'root']\n"
                                   "[state]\nadopt_grace = '1500ms'\n"
                                   "[arena]\ndefault_bytes = 4194304\n",
                                   "f.toml");
        REQUIRE_FALSE(bad);
        CHECK(config.pool.backend == "emu");
        CHECK(config.pool.capacity == 8 * kGiB);
        CHECK(config.pool.numa_node == 3);
        CHECK(config.server.socket_mode == 0660);
        CHECK(config.server.allow_uids == std::vector<std::uint32_t>{1000, 0});
        CHECK(config.state.adopt_grace == std::chrono::milliseconds(1500));
        CHECK(config.limits.default_arena_bytes == 4 * kMiB);
    }

    TEST_CASE("an unknown key or section is one line that names it and its line") {
        CHECK(error_message("[pool]\n\ncapacty = 1\n") ==
              "f.toml:3: unknown key \"pool.capacty\" (did you mean pool.capacity?)");
        CHECK(error_message("[pol]\n") == "f.toml:1: unknown key \"pol\" (did you mean pool?)");
        CHECK(error_message("capacity = 1\n") == "f.toml:1: unknown key \"capacity\"");
        CHECK(error_message("pool = 1\n") == "f.toml:1: pool is a section: [pool]");
    }

    TEST_CASE("a key under its former name is refused with the name that it has now") {
        CHECK(error_message("[control]\nquota_least = 0.1\n") ==
              "f.toml:2: control.quota_least is called control.quota_min now");
        CHECK(error_message("[control]\nshare_least = 0.1\n") ==
              "f.toml:2: control.share_least is called control.share_min now");
    }

    TEST_CASE("former names lead to keys, and none of them is a key") {
        CHECK(renamed_key("control.quota_least") == "control.quota_min");
        CHECK(renamed_key("control.quota_min").empty());
        for (const auto& key : config_keys()) CHECK(renamed_key(key.name).empty());
    }

    TEST_CASE("a bad value is one line that says what would be right") {
        CHECK(error_message("[log]\nlevel = 'loud'\n") ==
              "f.toml:2: bad value \"loud\" for log.level: wanted one of debug, info, warning, "
              "error, off");
        CHECK(error_message("[pool]\ncapacity = '1KiB'\n").find("wanted size in bytes") !=
              std::string::npos);
        CHECK(error_message("[pool]\ncapacity = [1]\n").find("f.toml:2: pool.capacity takes") == 0);
        CHECK(
            error_message("[server]\nallow_uids = 5\n").find("f.toml:2: server.allow_uids takes") ==
            0);
        CHECK(error_message("[server]\nallow_uids = ['']\n") != "");
        CHECK(error_message("[pool]\ncapacity = 1979-05-27\n") != "");
        CHECK(error_message("[pool\n").find("f.toml:1: ") == 0);
    }

    TEST_CASE("values outside the range of their key are refused") {
        for (const char* text :
             {"[pool]\ncapacity='1YiB'", "[pool]\ncapacity=-1", "[pool]\nnuma_node=1024",
              "[pool]\nnuma_node='x'", "[server]\nsocket_mode='0500'",
              "[server]\nsocket_mode='999'", "[server]\nsocket='relative.sock'",
              "[server]\nsocket_group=\"a\\nb\"", "[server]\nallow_uids=[4294967295]",
              "[server]\nallow_uids=[-1]", "[server]\nallow_uids=['no such user']",
              "[state]\nadopt_grace='2'", "[state]\nadopt_grace='2000min'", "[limits]\nsessions=0",
              "[pool]\ndax_trust_users='yes'"}) {
            CAPTURE(text);
            CHECK(error_message(text) != "");
        }
    }

    TEST_CASE("what is printed reads back as the same configuration") {
        Config config;
        REQUIRE_FALSE(read_toml(config,
                                "[server]\nsocket='/a \\\\ \"b\"'\n"
                                "[server.x]\n",
                                "f.toml")
                          .value_or("")
                          .empty());
        config = Config{};
        config.server.socket = "/a \\ \"b\"";
        config.server.allow_uids = {1, 2};
        config.pool.capacity = 3 * kMiB + 1;
        config.state.adopt_grace = std::chrono::microseconds(1500);
        const std::string printed = print_config(config);
        Config again;
        CHECK(read_toml(again, printed, "f.toml").value_or("") == "");
        CHECK(print_config(again) == printed);
        CHECK(again.server.socket == config.server.socket);
        CHECK(again.pool.capacity == config.pool.capacity);
    }

    TEST_CASE("every default is allowed, and no key or option appears twice") {
        std::set<std::string> options;
        for (const auto& key : config_keys()) {
            CAPTURE(key.name);
            Config config;
            CHECK(key.set(config, key.fallback));
            CHECK(key.get(config) == key.fallback);
            CHECK(options.insert(option_name(key)).second);
            CHECK_FALSE(key.help.empty());
            CHECK_FALSE(key.kind.empty());
        }
    }

    TEST_CASE("sizes that contradict each other are refused") {
        Config config;
        CHECK_FALSE(check_config(config));
        config.limits.max_arena_bytes = config.limits.default_arena_bytes - 1;
        CHECK(check_config(config));
    }

    TEST_CASE("devices of a striped pool are a list in an order, instead of the one device") {
        Config config;
        CHECK_FALSE(read_toml(
            config, "[pool]\nbackend = 'dax'\ndax_devices = ['/dev/dax1.0', '/dev/dax0.0']\n",
            "f.toml"));
        CHECK(config.pool.devices() == std::vector<std::string>{"/dev/dax1.0", "/dev/dax0.0"});
        CHECK_FALSE(check_config(config));
        const std::string printed = print_config(config);
        Config again;
        CHECK(read_toml(again, printed, "f.toml").value_or("") == "");
        CHECK(again.pool.dax_devices == config.pool.dax_devices);
        config.pool.dax_device = "/dev/dax0.0";
        CHECK(check_config(config)->find("exclude each other") != std::string::npos);
        config.pool.dax_device.clear();
        config.pool.backend = "emu";
        CHECK(check_config(config)->find("pool.dax_devices") != std::string::npos);
        config.pool.backend = "dax";
        config.pool.dax_devices.assign(9, "/dev/dax0.0");
        CHECK(check_config(config)->find("8 devices at most") != std::string::npos);
        CHECK_FALSE(error_message("[pool]\ndax_devices = ['dax0.0']\n").empty());
        CHECK_FALSE(error_message("[pool]\ndax_devices = '/dev/dax0.0'\n").empty());
    }

    TEST_CASE("a dax pool admits one user unless all are said to be trusted") {
        Config config;
        config.pool.backend = "dax";
        CHECK_FALSE(check_config(config));
        config.server.allow_uids = {1000};
        CHECK(check_config(config)->find("pool.dax_trust_users") != std::string::npos);
        config.pool.dax_trust_users = true;
        CHECK_FALSE(check_config(config));
        config.pool.backend = "emu";
        config.pool.dax_format = true;
        CHECK(check_config(config));
    }

    TEST_CASE("a file that is not there is named") {
        Config config;
        CHECK(read_config_file(config, "/nowhere/f.toml") == "/nowhere/f.toml: can't be read");
    }

    TEST_CASE("docs/configuration.md has the table as it is, and the manual page every key") {
        // After a change of the table: fabricd --print-config-table shows what belongs there.
        CHECK(contents("docs/configuration.md").find(config_table_markdown()) != std::string::npos);
        // Likewise: fabricd --print-config-manual.
        CHECK(contents("docs/man/fabricd.toml.5") == config_manual());
        std::string manual = contents("docs/man/fabricd.8");
        std::erase(manual, '\\');  // hyphens are escaped there
        for (const auto& key : config_keys()) {
            CAPTURE(key.name);
            CHECK(manual.find(key.name + " \", \" " + option_name(key) + "\n") !=
                  std::string::npos);
        }
    }
}

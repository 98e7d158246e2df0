// The configuration file. What is accepted can be printed, and read from what was printed.

#include "fabricd/config/config.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricd;

namespace {

void run(fuzz::Data input) {
    Config config;
    if (const auto bad = read_toml(config, fuzz::Input::text_of(input), "f.toml")) {
        FUZZ_REQUIRE(bad->starts_with("f.toml"));
        return;
    }
    (void)check_config(config);
    Config again;
    const auto bad = read_toml(again, print_config(config), "printed");
    FUZZ_REQUIRE(!bad);
    FUZZ_REQUIRE(changed_keys(config, again, {}).empty());
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> all;
    all.push_back(fuzz::buffer_of(
        "[pool]\nbackend = \"emu\"\ncapacity = \"1GiB\"\n[server]\nsocket_mode = \"0660\"\n"
        "allow_uids = [\"1000\", \"1001\"]\n[log]\nlevel = \"debug\"\n"));
    // A few keys of all sections each: whole files are long, and most of them alike.
    std::string section, part;
    for (const ConfigKey& key : config_keys()) {
        const auto dot = key.name.find('.');
        if (key.name.substr(0, dot) != section) {
            if (!part.empty()) all.push_back(fuzz::buffer_of(part));
            section = key.name.substr(0, dot);
            part = "[" + section + "]\n";
        }
        const char* const quote = key.is_quoted && !key.is_list ? "\"" : "";
        const std::string value = key.is_list ? "[]" : key.get(Config{});
        part += key.name.substr(dot + 1) + " = " + quote + value + quote + "\n";
    }
    all.push_back(fuzz::buffer_of(part));
    return all;
}

const fuzz::Registered kTarget({"config", run, seeds});

}  // namespace

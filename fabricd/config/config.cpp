#include "fabricd/config/config.hpp"

#include <sys/stat.h>

#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(condition) static_cast<void>(0)  // 3.3 asserts what files say: "[.a]"
#include <toml++/toml.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "fabricd/config/nearest_word.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/version.hpp"
#include "libfabricshm/os/stripes.hpp"

namespace fabricd {

namespace {

std::string line_of(const toml::source_region& source) {
    return ":" + std::to_string(source.begin.line);
}

/// A TOML value as the text that the table parses; nothing for kinds that no key has.
/// Numbers go back to text so that the table has one parser per key, for files and for the command
/// line.
std::optional<std::string> text_of(const toml::node& node) {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_integer()) return std::to_string(number->get());
    if (const auto* number = node.as_floating_point()) {
        char text[32];
        // 17 digits: every double reads back as it was.
        std::snprintf(text, sizeof text, "%.17g", number->get());
        return std::string(text);
    }
    if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
    const auto* list = node.as_array();
    if (list == nullptr) return std::nullopt;
    std::string text;
    for (const auto& item : *list) {
        const auto word = item.is_array() ? std::nullopt : text_of(item);
        // A comma or nothing in an item would read as another list than the one in the file.
        if (!word || word->empty() || word->find(',') != std::string::npos) return std::nullopt;
        text += (text.empty() ? "" : ",") + *word;
    }
    return text;
}

// Keys under a former name; decision journals of before have them, too.
struct FormerKey {
    const char* name;
    const char* now;
};
constexpr FormerKey kFormerKeys[] = {
    {"control.quota_least", "control.quota_min"},
    {"control.share_least", "control.share_min"},
};

// Some eighty keys, looked up at the start only: a list is fast enough and keeps their order.
const ConfigKey* find_key(const std::string& name) {
    const auto& keys = config_keys();
    const auto found = std::find_if(keys.begin(), keys.end(),
                                    [&](const ConfigKey& key) { return key.name == name; });
    return found == keys.end() ? nullptr : &*found;
}

// Sections are what stands before the dots of the keys: there is no list of them.
bool is_section(const std::string& name) {
    const auto& keys = config_keys();
    return std::any_of(keys.begin(), keys.end(),
                       [&](const ConfigKey& key) { return key.name.rfind(name + ".", 0) == 0; });
}

std::vector<std::string> key_names() {
    std::vector<std::string> names;
    for (const auto& key : config_keys()) names.push_back(key.name);
    return names;
}

std::vector<std::string> sections() {
    std::vector<std::string> names;
    for (const auto& name : key_names()) names.push_back(name.substr(0, name.find('.')));
    return names;
}

// One wording for --help, for the docs and for error messages.
std::string wanted(const ConfigKey& key) {
    return key.range.empty() ? key.kind : key.kind + ", " + key.range;
}

// Unknown keys are errors: a misspelt limit that is silently ignored is worse than a daemon that
// does not start.
ErrorMessage read_section(Config& config, const std::string& section, const toml::table& table,
                          const std::string& file) {
    for (const auto& [key, value] : table) {
        const std::string name = section + "." + std::string(key.str());
        const std::string where = file + line_of(key.source());
        const ConfigKey* known = find_key(name);
        if (const std::string now = renamed_key(name); !now.empty()) {
            return where + ": " + name + " is called " + now + " now";
        }
        if (known == nullptr) {
            return where + ": unknown key \"" + name + "\"" + did_you_mean(name, key_names());
        }
        const auto text = text_of(value);
        // A list is refused where one value is wanted, and one value where a list is: both would
        // look right in the file.
        if (!text || known->is_list != value.is_array()) {
            return where + ": " + name + " takes " + wanted(*known);
        }
        if (auto error_message = set_key(config, *known, *text, where)) return error_message;
    }
    return {};
}

// As TOML has it, so that what is printed can be read back.
std::string toml_string(const std::string& text) {
    std::string quoted = "\"";
    for (const char c : text) {
        // The two that TOML would read as something else; other control characters no key admits.
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += c;
    }
    return quoted + "\"";
}

std::string toml_value(const ConfigKey& key, const Config& config) {
    const std::string text = key.get(config);
    if (!key.is_list) return key.is_quoted ? toml_string(text) : text;
    if (!key.is_quoted) return "[" + text + "]";
    std::string list;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        list += (list.empty() ? "" : ", ") + toml_string(word);
    }
    return "[" + list + "]";
}

std::string section_of(const ConfigKey& key) {
    return key.name.substr(0, key.name.find('.'));
}

}  // namespace

std::string renamed_key(const std::string& name) {
    for (const FormerKey& former : kFormerKeys) {
        if (name == former.name) return former.now;
    }
    return "";
}

ErrorMessage refuse_former_option(const std::string& argument) {
    const std::string option = argument.substr(0, argument.find('='));
    for (const FormerKey& former : kFormerKeys) {
        if (option != option_name(std::string(former.name))) continue;
        return "command line: " + option + " is called " + option_name(std::string(former.now)) +
               " now";
    }
    return {};
}

// As the key, with hyphens: one name to remember.
std::string option_name(const std::string& key) {
    std::string name = "--" + key;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == '.' || c == '_'; }, '-');
    return name;
}

// The value that was given stands in the line: with a file and a command line people have to see
// which one it was.
bool is_of_host(const fabricshm::Error& error) noexcept {
    using fabricshm::Errc;
    return error.code == Errc::kSystem || error.code == Errc::kNoMemory ||
           error.code == Errc::kTimeout || error.code == Errc::kInternal;
}

ErrorMessage error_message_of(const fabricshm::Error& error, const std::string& keys) {
    // Explained, it names its key already.
    const std::string reason = fabricshm::reason_of(error);
    ErrorMessage error_message = reason.empty() ? describe(error) + " (" + keys + ")" : reason;
    error_message.is_of_host = is_of_host(error);
    return error_message;
}

ErrorMessage set_key(Config& config, const ConfigKey& key, const std::string& text,
                     const std::string& where) {
    if (key.set(config, text)) return {};
    return where + ": bad value \"" + text + "\" for " + key.name + ": wanted " + wanted(key);
}

ErrorMessage read_toml(Config& config, const std::string& text, const std::string& name) {
    const toml::parse_result parsed = toml::parse(text, name);
    // The parser's own words, with the line: it knows better than the table what is no TOML.
    if (!parsed) {
        return name + line_of(parsed.error().source()) + ": " +
               std::string(parsed.error().description());
    }
    for (const auto& [key, value] : parsed.table()) {
        const std::string section(key.str());
        const std::string where = name + line_of(key.source());
        // By section first, so that a misspelt section is named and not each of its keys.
        if (!is_section(section)) {
            return where + ": unknown key \"" + section + "\"" + did_you_mean(section, sections());
        }
        const auto* table = value.as_table();
        if (table == nullptr) return where + ": " + section + " is a section: [" + section + "]";
        if (auto error_message = read_section(config, section, *table, name)) return error_message;
    }
    return {};
}

ErrorMessage read_config_file(Config& config, const std::string& path) {
    // A folder opens like a file and then has nothing in it: all defaults, silently.
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
        return path + ": is a folder, wanted a file";
    }
    std::ifstream file(path);
    std::ostringstream text;
    // Reading an empty file sets the fail bit of `text`, so that only `file` shows it.
    if (file) text << file.rdbuf();
    if (!file || file.bad()) return path + ": can't be read";
    return read_toml(config, text.str(), path);
}

ErrorMessage check_config(const Config& config) {
    const Limits& limits = config.limits;
    // Only where both are given: 0 is "the pool is the limit".
    if (limits.max_arena_bytes != 0 && limits.default_arena_bytes > limits.max_arena_bytes) {
        return std::string("arena.default_bytes is larger than arena.max_bytes");
    }
    // Named, and not "auto", which never takes a dax device.
    const bool is_dax = config.pool.backend == "dax";
    const bool shared = !config.server.allow_uids.empty() || !config.server.socket_group.empty();
    // Every user that holds the descriptor of a dax device can map all of it (docs/pool.md).
    if (!config.pool.dax_devices.empty()) {
        if (!config.pool.dax_device.empty()) {
            return std::string("pool.dax_device and pool.dax_devices exclude each other");
        }
        if (!is_dax) return std::string("pool.dax_devices is for pool.backend = \"dax\" only");
        if (config.pool.dax_devices.size() > fabricshm::Stripes::kFilesMax) {
            return "pool.dax_devices: a pool lies on " +
                   std::to_string(fabricshm::Stripes::kFilesMax) + " devices at most";
        }
    }
    if (is_dax && shared && !config.pool.dax_trust_users) {
        return std::string(
            "a dax pool can't keep users apart: admit none besides the daemon's own "
            "(server.allow_uids, server.socket_group) or set pool.dax_trust_users");
    }
    // Flags of the command line without a key: they act once, and a file would repeat them at every
    // start.
    if (config.pool.dax_take_over && !is_dax) {
        return std::string("--take-over is for pool.backend = \"dax\" only");
    }
    if (is_dax && !config.emulate.machine.empty()) {
        return std::string("a dax pool is what it is: emulate.machine is for emu and numa pools");
    }
    // Without a machine there is nothing to slow down, and a silent 1 would look like a
    // measurement.
    if (config.emulate.machine.empty() && config.emulate.slow_motion != 1) {
        return std::string("emulate.slow_motion needs emulate.machine");
    }
    if (config.pool.dax_format && !is_dax) {
        return std::string("--format is for pool.backend = \"dax\" only");
    }
    if (const std::string bad = check_cluster(config.cluster); !bad.empty()) return bad;
    return {};
}

std::string changed_keys(const Config& before, const Config& now,
                         const std::vector<std::string>& besides) {
    std::string text;
    for (const auto& key : config_keys()) {
        const bool counts = std::find(besides.begin(), besides.end(), key.name) == besides.end();
        if (!counts || key.get(before) == key.get(now)) continue;
        text += (text.empty() ? "" : ", ") + key.name + " (" + key.get(before) + ", now " +
                key.get(now) + ")";
    }
    return text;
}

std::string print_config(const Config& config) {
    std::string text;
    std::string section;
    for (const auto& key : config_keys()) {
        if (section_of(key) != section) {
            text += (section.empty() ? "" : "\n");
            section = section_of(key);
            text += "[" + section + "]\n";
        }
        // Help as comments above each key: the printed file is the one that people edit.
        text += "# " + key.help + "\n# " + wanted(key) + "\n";
        text += key.name.substr(section.size() + 1) + " = " + toml_value(key, config) + "\n";
    }
    return text;
}

// Hyphens as such, backslashes as such, and no line that begins with a dot or a quote.
std::string roff(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '-') out += '\\';
        out += c == '\\' ? std::string("\\e") : std::string(1, c);
    }
    const bool control = !out.empty() && (out[0] == '.' || out[0] == '\'');
    return control ? "\\&" + out : out;
}

std::string config_manual() {
    std::string text =
        ".\\\" Made by fabricd --print-config-manual.\n"
        ".TH FABRICD.TOML 5 \"2026\" \"fabricd " FABRIC_VERSION
        "\" \"File Formats\"\n"
        ".SH NAME\nfabricd.toml \\- configuration of fabricd\n"
        ".SH DESCRIPTION\n"
        ".I /etc/fabricd/fabricd.toml\nfor root and the system service,\n"
        ".I ~/.config/fabricd/fabricd.toml\nfor others, or the file of\n"
        ".BR \"fabricd \\-\\-config\" .\n"
        "It is TOML; each key is an option of the command line, too, which wins.\n"
        "Unknown keys are errors.\n"
        "SIGHUP takes\n.B log.level\nfrom it and logs which other keys wait for a restart.\n"
        ".PP\nSizes are bytes or have a suffix (64MiB, 2G; powers of 1024); durations always have "
        "one "
        "(250ms, 10s).\nBoth are strings.\n"
        ".PP\n.B fabricd \\-\\-print\\-config\nprints all keys with the values that result.\n";
    std::string section;
    for (const auto& key : config_keys()) {
        if (section_of(key) != section) {
            section = section_of(key);
            text += ".SH [" + section + "]\n";
        }
        text += ".TP\n.B " + roff(key.name.substr(section.size() + 1)) + "\n" + roff(key.help) +
                "\n(" + roff(wanted(key)) +
                (key.fallback.empty() ? "" : "; default " + roff(key.fallback)) + ".)\n";
    }
    return text +
           ".SH EXAMPLES\n.nf\n[pool]\ncapacity = \"8GiB\"\n\n[server]\nsocket_mode = \"0660\"\n"
           "socket_group = \"training\"\n.fi\n"
           ".SH SEE ALSO\n.BR fabricd (8),\n.BR fabricctl (1)\n";
}

// The table of docs/configuration.md.
std::string config_table_markdown() {
    std::string text =
        "| key | option | value | range | default | meaning |\n|---|---|---|---|---|---|\n";
    for (const auto& key : config_keys()) {
        text += "| `" + key.name + "` | `" + option_name(key) + "` | " + key.kind + " | " +
                key.range + " | " + (key.fallback.empty() ? "" : "`" + key.fallback + "`") + " | " +
                key.help + " |\n";
    }
    return text;
}

}  // namespace fabricd

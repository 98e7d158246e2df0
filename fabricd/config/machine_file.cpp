#include "fabricd/config/machine_file.hpp"

// Header-only and without exceptions, as in config.cpp.
#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(condition) static_cast<void>(0)  // 3.3 asserts what files say: "[.a]"
#include <toml++/toml.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "emu/memory/presets.hpp"

namespace fabricd {

namespace {

using emu::EmulatedMachine;
using emu::Stretch;

// Nodes that the parser made up have no place in the file.
std::string place_of(const toml::source_region& source) {
    return source.begin ? ":" + std::to_string(source.begin.line) : std::string();
}

// A number, and the unit that follows it.
// from_chars() and not strtod(): the same file means the same in every locale.
std::optional<double> number_of(const std::string& text, std::string& unit) {
    double number = 0;
    const char* end = text.data() + text.size();
    const auto [rest, failure] = std::from_chars(text.data(), end, number);
    if (failure != std::errc{} || !std::isfinite(number) || number < 0) return std::nullopt;
    unit.assign(rest, end);
    if (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
    return number;
}

// Nanoseconds, whole ones, which is what waiting can count.
std::optional<std::uint64_t> parse_latency(const std::string& text) {
    const auto length = fabricshm::parse_duration(text);
    if (!length.ok()) return std::nullopt;
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(*length).count());
}

// The link page holds whole numbers, so permille.
std::optional<std::uint32_t> parse_permille(const std::string& text) {
    std::string unit;
    const auto percent = number_of(text, unit);
    if (!percent || unit != "%" || *percent > 100) return std::nullopt;
    return static_cast<std::uint32_t>(std::lround(*percent * 10));
}

// Sets `places` from text, with `parse`.
template <typename T, typename Parse>
bool take(const toml::node& node, Parse parse, std::initializer_list<T*> places) {
    const auto* text = node.as_string();
    const auto value = text != nullptr ? parse(text->get()) : std::nullopt;
    if (!value) return false;
    for (T* place : places) *place = static_cast<T>(*value);
    return true;
}

// Why `node` is no good for `key`, "" when it was taken, nullopt when there is no such key.
std::optional<std::string> take_stretch(const std::string& key, const toml::node& node,
                                        Stretch& own) {
    const auto said = [](bool good, const char* wanted) {
        return std::optional<std::string>(good ? "" : wanted);
    };
    constexpr const char* kTime = "a time with its unit, such as \"640ns\"";
    constexpr const char* kRate = "a rate with its unit, such as \"10.1GB/s\"";
    if (key == "latency") {
        return said(take(node, parse_latency, {&own.read_latency_ns, &own.write_latency_ns}),
                    kTime);
    }
    if (key == "read_latency")
        return said(take(node, parse_latency, {&own.read_latency_ns}), kTime);
    if (key == "write_latency") {
        return said(take(node, parse_latency, {&own.write_latency_ns}), kTime);
    }
    if (key == "bandwidth") {
        return said(take(node, parse_bandwidth, {&own.read_bandwidth, &own.write_bandwidth}),
                    kRate);
    }
    if (key == "read_bandwidth")
        return said(take(node, parse_bandwidth, {&own.read_bandwidth}), kRate);
    if (key == "write_bandwidth") {
        return said(take(node, parse_bandwidth, {&own.write_bandwidth}), kRate);
    }
    if (key == "knee_loss") {
        return said(take(node, parse_permille, {&own.knee_loss_permille}),
                    "a share of the bandwidth, such as \"5%\"");
    }
    if (key == "knee_ranks") {
        const auto ranks = node.value<std::int64_t>();
        // A 4.0 is not taken for a 4.
        const bool good = node.is_integer() && *ranks >= 1 && *ranks <= 1024;
        if (good) own.knee_ranks = static_cast<std::uint32_t>(*ranks);
        return said(good, "a number of ranks from 1 to 1024");
    }
    if (key == "half_duplex") {
        if (node.is_boolean()) own.half_duplex = *node.value<bool>();
        return said(node.is_boolean(), "true or false");
    }
    return std::nullopt;
}

// One device or link: a stretch, and names.
ErrorMessage read_part(const toml::table& table, const std::string& file, const std::string& what,
                       Stretch& own,
                       std::initializer_list<std::pair<const char*, std::string*>> names) {
    for (const auto& [key, node] : table) {
        const std::string word(key.str());
        const std::string where = file + place_of(key.source()) + ": ";
        std::string* name = nullptr;
        for (const auto& [known, place] : names) {
            if (word == known) name = place;
        }
        if (name != nullptr) {
            if (!node.is_string()) return where + what + "." + word + " takes a name";
            *name = node.as_string()->get();
            continue;
        }
        const auto error_message = take_stretch(word, node, own);
        if (!error_message) return where + "unknown key \"" + what + "." + word + "\"";
        if (!error_message->empty()) return where + what + "." + word + " takes " + *error_message;
    }
    // After the values, so that a mistake in one of them is reported first.
    for (const auto& [known, place] : names) {
        if (!place->empty()) continue;
        return file + place_of(table.source()) + ": this " + what + " lacks \"" + known + "\"";
    }
    return {};
}

// Calls read(table) for each table of [[what]]. `[what]` is the usual mistake, and is reported as
// such.
template <typename Read>
ErrorMessage each_table(const toml::node& node, const std::string& file, const std::string& what,
                        const Read& read) {
    const auto* list = node.as_array();
    const std::string wanted = file + place_of(node.source()) + ": write [[" + what + "]]";
    if (list == nullptr) return wanted;
    for (const auto& item : *list) {
        const auto* table = item.as_table();
        if (table == nullptr) return wanted;
        if (auto bad = read(*table)) return bad;
    }
    return {};
}

ErrorMessage read_nodes(const toml::node& node, const std::string& where,
                        EmulatedMachine& machine) {
    const ErrorMessage wanted =
        where + "nodes takes a list of names, such as [\"host0\", \"host1\"]";
    const auto* list = node.as_array();
    if (list == nullptr) return wanted;
    for (const auto& item : *list) {
        if (!item.is_string()) return wanted;
        machine.nodes.push_back(item.as_string()->get());
    }
    return {};
}

ErrorMessage read_key(const std::string& key, const toml::node& node, const std::string& file,
                      EmulatedMachine& machine) {
    // Keys outside of the sections are few; a misspelt one is as bad as a wrong value.
    const std::string where = file + place_of(node.source()) + ": ";
    if (key == "name" || key == "source") {
        if (!node.is_string()) return where + key + " takes a text";
        (key == "name" ? machine.name : machine.source) = node.as_string()->get();
        return {};
    }
    if (key == "coherent") {
        if (!node.is_boolean()) return where + "coherent takes true or false";
        machine.coherent = *node.value<bool>();
        return {};
    }
    if (key == "tail_latency") {
        if (take(node, parse_latency, {&machine.tail_latency_ns})) return {};
        return where + "tail_latency takes a time with its unit, such as \"190ns\"";
    }
    if (key == "tail_share") {
        if (take(node, parse_permille, {&machine.tail_permille})) return {};
        return where + "tail_share takes a share of the accesses, such as \"1%\"";
    }
    if (key == "seed") {
        const auto seed = node.value<std::int64_t>();
        const bool good = node.is_integer() && *seed >= 0 && *seed <= 65535;
        if (good) machine.seed = static_cast<std::uint32_t>(*seed);
        return good ? ErrorMessage() : ErrorMessage(where + "seed takes a number from 0 to 65535");
    }
    if (key == "nodes") return read_nodes(node, where, machine);
    if (key == "device") {
        return each_table(node, file, key, [&](const toml::table& table) {
            auto& device = machine.devices.emplace_back();
            return read_part(table, file, key, device.own, {{"name", &device.name}});
        });
    }
    if (key == "link") {
        return each_table(node, file, key, [&](const toml::table& table) {
            auto& link = machine.links.emplace_back();
            return read_part(table, file, key, link.own,
                             {{"name", &link.name}, {"from", &link.from}, {"to", &link.to}});
        });
    }
    return where + "unknown key \"" + key + "\"";
}

}  // namespace

// Decimal units, as data sheets have them.
std::optional<double> parse_bandwidth(const std::string& text) {
    std::string unit;
    const auto number = number_of(text, unit);
    if (!number || *number == 0) return std::nullopt;
    for (const auto& [name, factor] :
         {std::pair{"B/s", 1.0}, {"kB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}}) {
        if (unit == name) return *number * factor;
    }
    return std::nullopt;
}

ErrorMessage read_machine(const std::string& text, const std::string& file,
                          EmulatedMachine& machine) {
    const toml::parse_result parsed = toml::parse(text, file);
    if (!parsed) {
        return file + place_of(parsed.error().source()) + ": " +
               std::string(parsed.error().description());
    }
    // What the caller had is gone from here on: a machine is all of one file.
    machine = EmulatedMachine{};
    for (const auto& [key, node] : parsed.table()) {
        if (auto bad = read_key(std::string(key.str()), node, file, machine)) return bad;
    }
    // Called as its file when it does not say.
    if (machine.name.empty()) machine.name = std::filesystem::path(file).stem().string();
    // Resolved once for its error messages: links that lead nowhere are a mistake in the file.
    fabricshm::LinkImage links;
    if (auto bad = emu::resolve(machine, links)) return file + ": " + *bad;
    return {};
}

ErrorMessage find_machine(const std::string& name_or_path, EmulatedMachine& machine) {
    if (const EmulatedMachine* preset = emu::find_preset(name_or_path); preset != nullptr) {
        machine = *preset;
        return {};
    }
    const bool is_path = name_or_path.find('/') != std::string::npos ||
                         std::filesystem::path(name_or_path).extension() == ".toml";
    if (!is_path) {
        std::string names;
        // All of them in the line: a misspelt one is one of these.
        for (const auto& preset : emu::presets()) names += preset.name + ", ";
        return "\"" + name_or_path + "\" is no preset (" + names +
               "fabricd --emulate list) and no path of a machine file";
    }
    std::ifstream file(name_or_path);
    std::ostringstream text;
    if (file) text << file.rdbuf();
    if (!file || file.bad()) return name_or_path + ": can't be read";
    return read_machine(text.str(), name_or_path, machine);
}

}  // namespace fabricd

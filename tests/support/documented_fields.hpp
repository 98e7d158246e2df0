// The fields of --json as docs/fabricctl.md has them: what a program may rely on is written there.
// The test defines FABRIC_SOURCE_DIR.

#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

namespace test_support {

/// The row whose first cell has `name` as a word of its own; "" when there is none.
inline std::string documented_row(const std::string& name) {
    std::ifstream page(FABRIC_SOURCE_DIR "/docs/fabricctl.md");
    const std::regex first_cell("\\|[^|]*\\W" + name + "\\W[^|]*\\|.*");
    bool is_for_programs = false;
    for (std::string line; std::getline(page, line);) {
        is_for_programs = is_for_programs || line == "## For programs";
        if (is_for_programs && std::regex_match(line, first_cell)) return line;
    }
    return "";
}

/// The fields of a command's line or of an object, with those of the objects that its row names.
inline std::set<std::string> documented_fields(const std::string& name) {
    const std::string row = documented_row(name);
    std::set<std::string> fields;
    const auto add_all = [&](const std::regex& pattern, const auto& add) {
        for (auto at = std::sregex_iterator(row.begin(), row.end(), pattern);
             at != std::sregex_iterator(); ++at) {
            add((*at)[1].str());
        }
    };
    add_all(std::regex("[`\"]([a-z_0-9]+)[`\"]"), [&](const auto& field) { fields.insert(field); });
    std::set<std::string> objects;
    add_all(std::regex("\\b([A-Z]{4,})\\b"), [&](const auto& object) { objects.insert(object); });
    objects.erase(name);
    objects.erase("LINES");
    if (name == "TELEMETRY") objects = {"of `training`", "of `devices`", "of `paths`"};
    if (name == "top") objects.insert({"ARENA", "SESSION", "GROUP"});
    if (name == "STATUS") objects.insert("POOL");
    for (const auto& object : objects) fields.merge(documented_fields(object));
    return fields;
}

inline void collect_undocumented(const nlohmann::json& json, const std::set<std::string>& fields,
                                 std::set<std::string>& missing) {
    for (const auto& [key, value] : json.items()) {
        if (json.is_object() && fields.count(key) == 0) missing.insert(key);
        if (value.is_structured()) collect_undocumented(value, fields, missing);
    }
}

/// Keys of `json`, at any depth, that the page does not have for `name`: "" when it has all.
inline std::string undocumented(const nlohmann::json& json, const std::string& name) {
    std::set<std::string> missing;
    collect_undocumented(json, documented_fields(name), missing);
    std::string text;
    for (const auto& key : missing) text += (text.empty() ? "" : ", ") + key;
    return text;
}

}  // namespace test_support

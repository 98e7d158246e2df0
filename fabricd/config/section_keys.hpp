// Sections of the data file as tables of keys: what each of its readers is made of.

#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

// Header-only and without exceptions, as in config.cpp.
#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(condition) static_cast<void>(0)  // 3.3 asserts what files say: "[.a]"
#include <toml++/toml.h>

#include "fabricd/config/config.hpp"
#include "fabricd/config/nearest_word.hpp"
#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

/// Each reader takes one value and says what it wanted when the value is not that; "": it was
/// right.
template <typename Section>
struct SectionKey {
    const char* name;
    std::string (*read)(const toml::node& value, Section& section);
};

inline std::string place_in(const std::string& file, const toml::source_region& source) {
    return file + ":" + std::to_string(source.begin.line);
}

/// Every key of `table`, by its row.
template <typename Section, std::size_t count>
ErrorMessage read_keys(const toml::table& table, const std::string& file,
                       const SectionKey<Section> (&keys)[count], Section& section) {
    for (const auto& [name, value] : table) {
        const std::string here = place_in(file, name.source());
        const auto* key =
            std::find_if(std::begin(keys), std::end(keys),
                         [&, key = name.str()](const auto& known) { return key == known.name; });
        if (key == std::end(keys)) {
            std::vector<std::string> known;
            for (const auto& one : keys) known.emplace_back(one.name);
            const std::string word(name.str());
            return here + ": unknown key \"" + word + "\"" + did_you_mean(word, known);
        }
        const std::string wanted = key->read(value, section);
        if (!wanted.empty()) return here + ": " + key->name + " takes " + wanted;
    }
    return {};
}

/// A place in the namespace.
inline std::string read_place(const toml::node& value, std::string& place) {
    const auto* text = value.as_string();
    const std::string at = text != nullptr ? text->get() : "";
    // Shown in errors and listings as it is.
    const bool is_plain = at == printable(at);
    if (at.size() < 2 || at.front() != '/' || !is_plain || !is_silo_path(at.substr(1))) {
        return "a path in the namespace, as \"/images\"";
    }
    place = at;
    return "";
}

}  // namespace fabricd

#include "fabricd/config/prep_section.hpp"

#include <memory>
#include <utility>

namespace fabricd {

namespace {

constexpr std::int64_t kThreadsMax = 64;
constexpr std::int64_t kPixelsMax = std::int64_t{1} << 30;

// As it stands in the file.
struct PrepSection {
    std::string at;
    std::string of;
    std::vector<std::string> steps;
    std::vector<int> lines;  // of the steps
    PrepSpec prep;
};

std::string read_at(const toml::node& value, PrepSection& section) {
    return read_place(value, section.at);
}

std::string read_of(const toml::node& value, PrepSection& section) {
    return read_place(value, section.of);
}

std::string read_steps(const toml::node& value, PrepSection& section) {
    constexpr const char* kWanted = "a list, as [\"decode\", \"resize 256\", \"centre-crop 224\"]";
    const auto* list = value.as_array();
    if (list == nullptr || list->empty()) return kWanted;
    for (const auto& item : *list) {
        const auto* text = item.as_string();
        if (text == nullptr) return kWanted;
        section.steps.push_back(text->get());
        section.lines.push_back(static_cast<int>(item.source().begin.line));
    }
    return "";
}

std::string read_on_error(const toml::node& value, PrepSection& section) {
    const auto* text = value.as_string();
    const std::string word = text != nullptr ? text->get() : "";
    section.prep.skips_bad = word == "skip-and-count";
    return section.prep.skips_bad || word == "raise" ? "" : "\"raise\" or \"skip-and-count\"";
}

// 0: it is none, or out of range.
std::int64_t whole_number_of(const toml::node& value, std::int64_t most) {
    const auto* number = value.as_integer();
    const std::int64_t given = number != nullptr ? number->get() : 0;
    return given >= 1 && given <= most ? given : 0;
}

std::string read_threads(const toml::node& value, PrepSection& section) {
    section.prep.threads = static_cast<unsigned>(whole_number_of(value, kThreadsMax));
    return section.prep.threads != 0 ? "" : "a number, 1 to 64";
}

std::string read_pixels(const toml::node& value, PrepSection& section) {
    section.prep.most_pixels = static_cast<std::uint64_t>(whole_number_of(value, kPixelsMax));
    return section.prep.most_pixels != 0 ? "" : "a number, 1 to 1073741824";
}

constexpr SectionKey<PrepSection> kPrepKeys[] = {
    {"at", read_at},           {"of", read_of},
    {"steps", read_steps},     {"on_error", read_on_error},
    {"threads", read_threads}, {"pixels", read_pixels}};
constexpr const char* kPrepRequired[] = {"at", "of", "steps"};

// Its own line, for a list may stand in many.
ErrorMessage check_steps(const std::string& file, PrepSection& section) {
    const auto bad = parse_steps(section.steps, section.prep.steps);
    if (!bad) return {};
    std::string line = file + ":" + std::to_string(section.lines[bad->step]) + ": step \"" +
                       printable(section.steps[bad->step]) + "\": " + bad->text;
    if (bad->unknown.empty()) return line;
    std::vector<std::string> names;
    for (const StepRow& row : step_rows()) names.emplace_back(row.name);
    return line + did_you_mean(bad->unknown, names);
}

// "/images/train" is a folder of "/images".
bool find_source(const std::vector<SiloSpec>& silos, const std::string& of, PrepSpec& prep) {
    for (const SiloSpec& silo : silos) {
        const bool is_folder = of.rfind(silo.at + "/", 0) == 0;
        if (silo.prep != nullptr || (of != silo.at && !is_folder)) continue;
        prep.source = silo;
        prep.below = is_folder ? of.substr(silo.at.size() + 1) : "";
        return true;
    }
    return false;
}

std::string description_of(const PrepSection& section) {
    std::string text = "of " + section.of + ":";
    for (const PrepStep& step : section.prep.steps) {
        text += (text.back() == ':' ? " " : ", ") + text_of(step);
    }
    return printable(text);
}

}  // namespace

ErrorMessage read_prep_section(const toml::table& table, const std::string& file,
                               const std::vector<SiloSpec>& silos, SiloSpec& silo) {
    const std::string where = place_in(file, table.source());
    for (const char* key : kPrepRequired) {
        if (!table.contains(key)) return where + ": the prep has no " + key;
    }
    PrepSection section;
    if (auto bad = read_keys(table, file, kPrepKeys, section)) return bad;
    if (auto bad = check_steps(file, section)) return bad;
    if (!find_source(silos, section.of, section.prep)) {
        return where + ": of is " + section.of + ", which no [[silo]] has";
    }
    silo = {};
    silo.at = section.at;
    silo.from = description_of(section);
    silo.line = static_cast<int>(table.source().begin.line);
    silo.prep = std::make_shared<const PrepSpec>(std::move(section.prep));
    return {};
}

}  // namespace fabricd

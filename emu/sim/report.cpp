#include "emu/sim/report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "emu/sim/sim_units.hpp"
#include "libfabricshm/base/units.hpp"

namespace emu {

namespace {

// Units are at the end of a name, and `_per_s` ends in `_s`, too: the longer one is asked for
// first, here and below.
bool ends_with(const std::string& text, const char* end) {
    const std::string_view tail(end);
    return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

// Six digits: a program gets no noise that looks like precision, and people no long tails.
std::string plain(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.6g", value);
    return text;
}

std::string for_people(const std::string& column, const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell)) return *text;
    const double value = std::get<double>(cell);
    if (std::isnan(value)) return "-";
    if (ends_with(column, "_per_s")) return format_rate(value);
    if (ends_with(column, "_s")) return format_seconds(value);
    if (ends_with(column, "_bytes")) {
        return fabricshm::format_bytes(static_cast<fabricshm::Bytes>(value));
    }
    if (!ends_with(column, "_share")) return plain(value);
    char text[40];
    std::snprintf(text, sizeof text, "%.1f %%", 100 * value);
    return text;
}

// As spreadsheets read it: quotes around what holds a comma, a quote or a line's end.
std::string quoted(const std::string& text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
    return out + "\"";
}

std::string for_csv(const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell)) return quoted(*text);
    // Infinity has no spelling that all programs read.
    const double value = std::get<double>(cell);
    return std::isfinite(value) ? plain(value) : "";
}

nlohmann::ordered_json for_json(const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell)) return *text;
    const double value = std::get<double>(cell);
    if (!std::isfinite(value)) return nullptr;
    return value;
}

// A column's title without its unit, which is in the cells.
std::string title_of(const std::string& column) {
    for (const char* unit : {"_per_s", "_s", "_bytes", "_share"}) {
        if (ends_with(column, unit)) {
            return column.substr(0, column.size() - std::string_view(unit).size());
        }
    }
    return column;
}

}  // namespace

std::string as_text(const Report& report) {
    // All as text first: the widths of columns are known only then.
    std::vector<std::vector<std::string>> lines(1);
    for (const std::string& column : report.columns) lines[0].push_back(title_of(column));
    for (const auto& row : report.rows) {
        std::vector<std::string> cells;
        for (std::size_t i = 0; i < row.size(); ++i) {
            cells.push_back(for_people(report.columns[i], row[i]));
        }
        lines.push_back(cells);
    }
    std::string text;
    for (const auto& [name, value] : report.facts) {
        text += title_of(name) + ": " + for_people(name, value) + "\n";
    }
    std::vector<std::size_t> widths(report.columns.size(), 0);
    for (const auto& line : lines) {
        for (std::size_t i = 0; i < line.size(); ++i)
            widths[i] = std::max(widths[i], line[i].size());
    }
    for (const auto& line : lines) {
        for (std::size_t i = 0; i < line.size(); ++i) {
            text += (i == 0 ? "" : "  ") + std::string(widths[i] - line[i].size(), ' ') + line[i];
        }
        text += '\n';
    }
    for (const std::string& note : report.notes) text += note + "\n";
    return text;
}

// One header and rows of one kind: facts and notes would make it something that no program reads.
std::string as_csv(const Report& report) {
    std::string text;
    for (std::size_t i = 0; i < report.columns.size(); ++i) {
        text += (i == 0 ? "" : ",") + report.columns[i];
    }
    text += '\n';
    for (const auto& row : report.rows) {
        for (std::size_t i = 0; i < row.size(); ++i) text += (i == 0 ? "" : ",") + for_csv(row[i]);
        text += '\n';
    }
    return text;
}

std::string as_json(const Report& report) {
    nlohmann::ordered_json out;
    // Facts come as fields of the whole, rows as objects: a reader picks by name, and columns may
    // be added.
    out["query"] = report.query;
    for (const auto& [name, value] : report.facts) out[name] = for_json(value);
    out["rows"] = nlohmann::ordered_json::array();
    for (const auto& row : report.rows) {
        nlohmann::ordered_json object;
        for (std::size_t i = 0; i < row.size(); ++i) object[report.columns[i]] = for_json(row[i]);
        out["rows"].push_back(object);
    }
    out["notes"] = report.notes;
    return out.dump(1) + "\n";
}

}  // namespace emu

// Report: the answer to one query as a table, for people, spreadsheets and programs.

#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace emu {

/// A number without a value (not measured, never happens) is NaN: "-" in text, empty in CSV, null
/// in JSON.
using Cell = std::variant<std::string, double>;

/// The unit is the end of a column's name: `_s` seconds, `_bytes`, `_per_s` bytes per second,
/// `_share` of one. Text shows them with units that suit; CSV and JSON leave the plain numbers.
struct Report {
    std::string query;
    std::vector<std::pair<std::string, Cell>> facts;  // what holds for all rows
    std::vector<std::string> columns;
    std::vector<std::vector<Cell>> rows;
    std::vector<std::string> notes;  // for people
    bool has_faults = false;         // what was simulated broke its rules: exit status 1
};

std::string as_text(const Report& report);
std::string as_csv(const Report& report);
std::string as_json(const Report& report);

}  // namespace emu

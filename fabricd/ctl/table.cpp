#include "fabricd/ctl/table.hpp"

#include <algorithm>

namespace fabricd {

namespace {

// Bytes are columns: what the daemon sends is ASCII, see admin_codec.cpp.
std::string padded(const std::string& cell, std::size_t width, Table::Align align) {
    const std::string blanks(width - std::min(width, cell.size()), ' ');
    return align == Table::Align::kRight ? blanks + cell : cell + blanks;
}

}  // namespace

std::string Table::text() const {
    // A word instead of a headline with nothing below.
    if (rows_.empty()) return "none\n";
    std::vector<std::size_t> widths;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
        std::size_t width = columns_[i].title.size();
        for (const auto& row : rows_) width = std::max(width, row[i].size());
        widths.push_back(width);
    }
    std::string result;
    const auto add_line = [&](auto cell_at) {
        std::string line;
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            line += (i == 0 ? "" : "  ") + padded(cell_at(i), widths[i], columns_[i].align);
        }
        // No blanks at the ends of lines: they wrap in narrow windows, and diffs show them.
        line.erase(line.find_last_not_of(' ') + 1);
        result += line + "\n";
    };
    add_line([&](std::size_t i) { return columns_[i].title; });
    for (const auto& row : rows_) add_line([&](std::size_t i) { return row[i]; });
    return result;
}

}  // namespace fabricd

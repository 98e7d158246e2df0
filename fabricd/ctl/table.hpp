// Table: rows of text in columns, for people.

#pragma once

#include <string>
#include <vector>

namespace fabricd {

/// Columns are as wide as their widest cell, two blanks apart. Numbers go to the right.
/// For eyes, not for parsing: programs use --json. A byte counts as a column, which holds for all
/// that comes from clients: the daemon lets only ASCII through.
class Table {
  public:
    enum class Align { kLeft, kRight };
    struct Column {
        std::string title;
        Align align = Align::kLeft;
    };

    explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

    /// One cell per column.
    void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

    /// All lines with their ends; "none" and a line end when there are no rows.
    /// Widths are computed here and not as rows come, since the widest cell may be the last.
    std::string text() const;

  private:
    std::vector<Column> columns_;
    std::vector<std::vector<std::string>> rows_;
};

/// For columns of numbers.
inline constexpr auto kRight = Table::Align::kRight;

}  // namespace fabricd

// ListText: the JSON of a list, as far as a number of bytes reaches.

#pragma once

#include <string>

#include "fabricd/ctl/json.hpp"

namespace fabricd {

struct ListBound {
    std::size_t rows = 0;
    std::size_t bytes = 0;
};

/// Rows go in one by one, from the first on, until one finds no room.
class ListText {
  public:
    explicit ListText(ListBound bound) : bound_(bound) {}

    /// False when it is full: the row is not in it, and none after it should be.
    bool add(const Json& row) {
        return append([&](std::string& text) { text += one_line(row); });
    }
    /// The same of a row that `append_row` appends to the text.
    template <typename AppendRow>
    bool append(AppendRow append_row) {
        if (rows_ == bound_.rows) return false;
        const std::size_t before = text_.size();
        if (rows_ != 0) text_ += ',';
        append_row(text_);
        if (text_.size() + (rows_ == 0 ? 1 : 0) > bound_.bytes) {
            text_.resize(before);
            return false;
        }
        ++rows_;
        return true;
    }

    std::size_t rows() const { return rows_; }
    /// At most bound.bytes and the two brackets.
    std::string text() const { return "[" + text_ + "]"; }

  private:
    ListBound bound_;
    std::size_t rows_ = 0;
    std::string text_;
};

}  // namespace fabricd

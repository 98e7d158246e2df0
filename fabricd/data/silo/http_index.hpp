// The index of a web server's files: HTTP has no listings.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

struct IndexedName {
    std::string name;
    bool is_folder = false;
    Bytes bytes = 0;  // of files
};

/// A file a line, its bytes and its path: "28174 train/0001.jpg", as
/// `find . -type f -printf '%s %P\n'` writes them. In any order.
class HttpIndex {
  public:
    HttpIndex() = default;
    /// What is no line of this kind, or stands there twice, is left out and counted.
    explicit HttpIndex(std::string_view text);

    /// What is in `folder`, by name. nullopt: nothing is, and it is not the root.
    std::optional<std::vector<IndexedName>> names_in(const std::string& folder) const;

    bool has_files() const noexcept { return !rows_.empty(); }
    std::size_t left_out() const noexcept { return left_out_; }
    const std::string& first_left_out() const noexcept { return first_left_out_; }

  private:
    struct Row {
        std::string path;
        Bytes bytes = 0;
    };

    void add_line(std::string_view line);
    void leave_out(std::string_view line, const char* reason);
    void leave_out_doubles();

    std::vector<Row> rows_;  // by path
    std::size_t left_out_ = 0;
    std::string first_left_out_;
};

}  // namespace fabricd

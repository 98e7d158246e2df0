#include "fabricd/data/silo/http_index.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace fabricd {

namespace {

constexpr std::size_t kShownLine = 100;

bool is_below(const std::string& path, const std::string& folder) noexcept {
    return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

}  // namespace

HttpIndex::HttpIndex(std::string_view text) {
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        add_line(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    std::sort(rows_.begin(), rows_.end(),
              [](const Row& a, const Row& b) { return a.path < b.path; });
    leave_out_doubles();
}

void HttpIndex::leave_out(std::string_view line, const char* reason) {
    if (left_out_++ != 0) return;
    first_left_out_ = printable(line.substr(0, kShownLine)) + ": " + reason;
}

void HttpIndex::add_line(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) return;
    Row row;
    const auto parsed = std::from_chars(line.data(), line.data() + line.size(), row.bytes);
    const auto digits = static_cast<std::size_t>(parsed.ptr - line.data());
    if (parsed.ec != std::errc() || digits == line.size() || line[digits] != ' ') {
        return leave_out(line, "not a number of bytes and a path");
    }
    row.path = line.substr(digits + 1);
    if (row.path.empty() || !is_silo_path(row.path)) {
        return leave_out(row.path, "no path in a silo");
    }
    rows_.push_back(std::move(row));
}

// Twice the same path, and files that are a folder, too: whatever is below a path comes behind it,
// but not always at once ("a", "a-", "a/b").
void HttpIndex::leave_out_doubles() {
    const auto is_folder = [&](const std::string& path) {
        const auto below = std::lower_bound(
            rows_.begin(), rows_.end(), path + "/",
            [](const Row& row, const std::string& other) { return row.path < other; });
        return below != rows_.end() && is_below(below->path, path);
    };
    std::vector<bool> stays(rows_.size(), true);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        const std::string& path = rows_[i].path;
        const bool is_double = i > 0 && rows_[i - 1].path == path;
        if (!is_double && !is_folder(path)) continue;
        leave_out(path, is_double ? "there twice" : "the name of a folder, too");
        stays[i] = false;
    }
    std::vector<Row> kept;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (stays[i]) kept.push_back(std::move(rows_[i]));
    }
    rows_ = std::move(kept);
}

std::optional<std::vector<IndexedName>> HttpIndex::names_in(const std::string& folder) const {
    const auto before = [](const Row& row, const std::string& path) { return row.path < path; };
    const std::string prefix = folder.empty() ? "" : folder + "/";
    auto row = std::lower_bound(rows_.begin(), rows_.end(), prefix, before);
    std::vector<IndexedName> names;
    while (row != rows_.end() && row->path.starts_with(prefix)) {
        const std::string rest = row->path.substr(prefix.size());
        const std::size_t slash = rest.find('/');
        if (slash == rest.npos) {
            names.push_back({rest, false, row->bytes});
            ++row;
            continue;
        }
        names.push_back({rest.substr(0, slash), true, 0});
        // Past all that is below it: '0' is the letter behind '/'.
        row = std::lower_bound(row, rows_.end(), prefix + names.back().name + "0", before);
    }
    if (names.empty() && !folder.empty()) return std::nullopt;
    // Paths are in another order: "a-" comes before "a/b", and the folder "a" before "a-".
    std::sort(names.begin(), names.end(),
              [](const IndexedName& a, const IndexedName& b) { return a.name < b.name; });
    return names;
}

}  // namespace fabricd

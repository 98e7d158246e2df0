#include "fabricd/config/toml_text.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fabricd {

namespace {

bool is_other(char letter) {
    return static_cast<unsigned char>(letter) >= 0x80;
}

void hide_in_comments(std::string& text) {
    const bool has_long_texts = text.find("\"\"\"") != text.npos || text.find("'''") != text.npos;
    if (has_long_texts) return;
    char quote = 0;  // that of the text which `at` is in
    bool is_comment = false;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char letter = text[at];
        if (letter == '\n') {
            quote = 0;
            is_comment = false;
        } else if (is_comment) {
            if (is_other(letter)) text[at] = '?';
        } else if (quote != 0) {
            if (letter == '\\' && quote == '"') ++at;
            if (letter == quote) quote = 0;
        } else if (letter == '"' || letter == '\'') {
            quote = letter;
        } else {
            is_comment = letter == '#';
        }
    }
}

}  // namespace

ErrorMessage read_small_text(const std::string& path, std::string& text) {
    constexpr std::uintmax_t kMaxText = 1 << 20;
    std::error_code error;
    const auto kind = std::filesystem::status(path, error).type();
    if (kind == std::filesystem::file_type::not_found) return path + ": is not there";
    if (kind != std::filesystem::file_type::regular) return path + ": is no file";
    if (std::filesystem::file_size(path, error) > kMaxText) return path + ": is above 1 MiB";
    std::ifstream file(path);
    std::ostringstream all;
    // Reading an empty file sets the fail bit of `all`, so that only `file` shows it.
    if (file) all << file.rdbuf();
    if (!file || file.bad()) return path + ": can't be read";
    text = all.str();
    return {};
}

ErrorMessage take_ascii(std::string& text, const std::string& name) {
    hide_in_comments(text);
    const auto other = std::find_if(text.begin(), text.end(), is_other);
    if (other == text.end()) return {};
    const auto line = 1 + std::count(text.begin(), other, '\n');
    return name + ":" + std::to_string(line) +
           ": a character that is not ASCII; in quotes it is written as \\u and four digits";
}

}  // namespace fabricd

#include "fabricd/jobs/rank_output.hpp"

#include <algorithm>

namespace fabricd {

namespace {

constexpr std::size_t kMaxLine = 64 << 10;
constexpr std::size_t kMaxKeptLine = 1 << 10;

}  // namespace

std::string LinePrefixer::add(std::string_view text) {
    std::string lines;
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        const bool is_whole = end != std::string_view::npos;
        rest_ += text.substr(0, is_whole ? end : text.size());
        text.remove_prefix(is_whole ? end + 1 : text.size());
        if (is_whole || rest_.size() > kMaxLine) {
            lines += prefix_ + rest_ + "\n";
            rest_.clear();
        }
    }
    return lines;
}

std::string LinePrefixer::finish() {
    return rest_.empty() ? "" : add("\n");
}

void LastLines::add(std::string_view text) {
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        const bool is_whole = end != std::string_view::npos;
        const std::string_view piece = text.substr(0, is_whole ? end : text.size());
        rest_ += piece.substr(0, kMaxKeptLine - std::min(kMaxKeptLine, rest_.size()));
        text.remove_prefix(is_whole ? end + 1 : text.size());
        if (is_whole) end_line();
    }
}

void LastLines::end_line() {
    lines_.push_back(std::move(rest_));
    rest_.clear();
    if (lines_.size() > limit_) lines_.pop_front();
}

std::vector<std::string> LastLines::lines() const {
    std::vector<std::string> all(lines_.begin(), lines_.end());
    if (!rest_.empty()) all.push_back(rest_);
    if (all.size() > limit_) all.erase(all.begin());
    return all;
}

}  // namespace fabricd

// The output of ranks: whole lines with the rank in front, and the last lines of each.

#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace fabricd {

/// Cuts what comes in pieces into lines, each with a prefix. Bounded: a line above 64 KiB is cut.
class LinePrefixer {
  public:
    explicit LinePrefixer(std::string prefix = "") : prefix_(std::move(prefix)) {}

    /// The whole lines that are there now.
    std::string add(std::string_view text);
    /// The rest, as a line.
    std::string finish();

  private:
    std::string prefix_;
    std::string rest_;
};

/// The last `limit` lines, of 1 KiB at most each.
class LastLines {
  public:
    explicit LastLines(std::size_t limit) : limit_(limit) {}

    void add(std::string_view text);
    std::vector<std::string> lines() const;

  private:
    void end_line();

    std::size_t limit_;
    std::deque<std::string> lines_;
    std::string rest_;
};

}  // namespace fabricd

// The text of a file that people write, before it is parsed as TOML.

#pragma once

#include <string>

#include "fabricd/config/config.hpp"

namespace fabricd {

/// Reads a regular file of 1 MiB at most. A FIFO or a device, which may never end, is refused.
ErrorMessage read_small_text(const std::string& path, std::string& text);

/// The text without what toml++ 3.3 is undefined for where it looks for blanks (its
/// is_non_ascii_horizontal_whitespace()): many characters, also of a person's own language. In
/// comments they become question marks, with all other bytes where they were; elsewhere they are
/// refused. A file with texts over several lines has no such comments.
ErrorMessage take_ascii(std::string& text, const std::string& name);

}  // namespace fabricd

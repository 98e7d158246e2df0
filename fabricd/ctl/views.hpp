// Pictures as text for people and as JSON for programs. docs/fabricctl.md has the JSON's fields.

#pragma once

#include <string>

#include "fabricd/ctl/picture.hpp"

namespace fabricd {

/// One or several lines, each with its end.
std::string text_view(const Picture& picture, View view);

/// One line without its end.
std::string json_view(const Picture& picture, View view);

/// "alice", or the number when nobody has that name.
std::string user_name(std::uint32_t uid);

}  // namespace fabricd

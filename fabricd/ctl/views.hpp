// Pictures as text for people and as JSON for programs. docs/fabricctl.md has the JSON's fields.

#pragma once

#include <string>

#include "fabricd/ctl/picture.hpp"

namespace fabricd {

/// One or several lines, each with its end.
/// `picture` needs to hold only what `view` shows, see AdminClient::fetch(). For people, and free
/// to change.
std::string text_view(const Picture& picture, View view);

/// One line without its end.
/// The object of docs/fabricctl.md, to which fields are only ever added.
std::string json_view(const Picture& picture, View view);

/// "alice", or the number when it has no name.
/// Asks the host's user database each time, which may be slow behind a directory service. Not
/// thread-safe.
std::string user_name(std::uint32_t uid);

}  // namespace fabricd

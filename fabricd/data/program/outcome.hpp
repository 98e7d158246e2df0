// Exit codes of fabric-data, and the line that says why.

#pragma once

#include <cstdio>
#include <string>

namespace fabricd {

inline constexpr int kFailed = 1;
inline constexpr int kBadUsage = 2;

/// Prints one line to stderr; gives `code`.
inline int fail(int code, const std::string& text) {
    std::fprintf(stderr, "fabric-data: %s\n", text.c_str());
    return code;
}

}  // namespace fabricd

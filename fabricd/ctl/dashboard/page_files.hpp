// The files of the dashboard's page, which are part of the program.

#pragma once

#include <span>
#include <string_view>

namespace fabricd {

struct PageFile {
    std::string_view path;  // that a browser asks for
    const char* type;
    std::string_view text;
};

/// Those of the folder page/, as they were when the program was built.
std::span<const PageFile> page_files();

}  // namespace fabricd

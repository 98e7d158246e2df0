#include "fabricd/data/silo/silo.hpp"

#include <cstdio>

namespace fabricd {

bool is_silo_path(std::string_view path) noexcept {
    if (path.size() > kSiloPathBytes || path.find('\0') != path.npos) return false;
    if (path.empty()) return true;
    for (std::size_t begin = 0;;) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        const std::string_view name = path.substr(begin, end - begin);
        if (name.empty() || name == "." || name == ".." || name.size() > kSiloNameBytes) {
            return false;
        }
        if (end == path.size()) return true;
        begin = end + 1;
    }
}

std::string joined_path(const std::string& folder, const std::string& name) {
    return folder.empty() ? name : name.empty() ? folder : folder + "/" + name;
}

std::string printable(std::string_view path) {
    std::string text;
    for (const char letter : path) {
        const auto byte = static_cast<unsigned char>(letter);
        if (byte >= 0x20 && byte < 0x7f && byte != '\\') {
            text += letter;
            continue;
        }
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
        text += escaped;
    }
    return text;
}

}  // namespace fabricd

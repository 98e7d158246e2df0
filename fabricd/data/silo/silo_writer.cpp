#include "fabricd/data/silo/silo_writer.hpp"

#include <algorithm>
#include <cstdio>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr std::string_view kTemporary = ".fabric-write-";
constexpr std::size_t kNameDigits = 16;

}  // namespace

Result<void> check_write_path(const std::string& path, const std::string& shown) {
    const bool is_path =
        !path.empty() && is_silo_path(path) && !is_temporary_name(path.substr(path.rfind('/') + 1));
    if (is_path) return {};
    return explain({Errc::kInvalid, 0, "begin file"}, "%s is no path of a file in a silo",
                   shown.c_str());
}

Error error_of_taken(const std::string& shown, const char* step) {
    return explain({Errc::kExists, 0, step},
                   "%s is there already, and files are not written again in place", shown.c_str());
}

Error error_of_no_folder(const std::string& shown, const char* step) {
    return explain({Errc::kExists, 0, step}, "%s is no folder", shown.c_str());
}

std::string token_text(std::uint64_t token) {
    char text[kNameDigits + 1];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(token));
    return text;
}

std::string temporary_name(std::uint64_t token) {
    return std::string(kTemporary) + token_text(token);
}

bool is_temporary_name(std::string_view name) noexcept {
    if (!name.starts_with(kTemporary) || name.size() != kTemporary.size() + kNameDigits)
        return false;
    name.remove_prefix(kTemporary.size());
    return std::all_of(name.begin(), name.end(), [](char letter) {
        return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f');
    });
}

}  // namespace fabricd

#include "fabricd/data/silo/silo_writer.hpp"

#include <algorithm>
#include <cstdio>

namespace fabricd {

namespace {

constexpr std::string_view kTemporary = ".fabric-write-";
constexpr std::size_t kDigits = 16;

}  // namespace

std::string token_text(std::uint64_t token) {
    char text[kDigits + 1];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(token));
    return text;
}

std::string temporary_name(std::uint64_t token) {
    return std::string(kTemporary) + token_text(token);
}

bool is_temporary_name(std::string_view name) noexcept {
    if (!name.starts_with(kTemporary) || name.size() != kTemporary.size() + kDigits) return false;
    name.remove_prefix(kTemporary.size());
    return std::all_of(name.begin(), name.end(), [](char letter) {
        return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f');
    });
}

}  // namespace fabricd

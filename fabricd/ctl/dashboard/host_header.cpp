#include "fabricd/ctl/dashboard/host_header.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

namespace fabricd {

namespace {

constexpr std::size_t kMaxPortDigits = 5;

/// "" or ":8765". What else a server before this one made of it can't be known, and what a lax
/// reader takes for a port may be the rest of another name: "127.0.0.1:1@evil.example".
bool is_port(std::string_view text) {
    if (text.empty()) return true;
    const std::string_view digits = text.substr(1);
    // from_chars() takes a sign of no number here, but would take any number of zeros.
    if (text.front() != ':' || digits.size() > kMaxPortDigits) return false;
    std::uint16_t port = 0;
    const char* const end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, port);
    return parsed.ec == std::errc() && parsed.ptr == end && port != 0;
}

}  // namespace

std::optional<std::string_view> name_of_host(std::string_view header) {
    std::size_t end = header.find(':');
    if (header.starts_with('[')) {
        const std::size_t bracket = header.find(']');
        if (bracket == header.npos) return std::nullopt;
        end = bracket + 1;
    }
    const std::string_view name = header.substr(0, end);
    if (name.empty() || !is_port(header.substr(name.size()))) return std::nullopt;
    return name;
}

bool is_same_host_name(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
        return std::tolower(x) == std::tolower(y);
    });
}

}  // namespace fabricd

#include "fabricd/data/silo/url_text.hpp"

#include <charconv>
#include <cstring>

namespace fabricd {

namespace {

bool is_plain(char letter) noexcept {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || std::strchr("-._~", letter) != nullptr;
}

}  // namespace

std::string url_encoded(std::string_view text, bool keep_slash) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    std::string encoded;
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        if (byte != 0 && (is_plain(letter) || (keep_slash && letter == '/'))) {
            encoded += letter;
        } else {
            encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
        }
    }
    return encoded;
}

bool url_decode(std::string_view text, std::string& decoded) {
    decoded.clear();
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (text[at] != '%') {
            decoded += text[at] == '+' ? ' ' : text[at];
            continue;
        }
        unsigned byte = 0;
        const std::string_view digits = text.substr(at + 1, 2);
        const auto* const end = digits.data() + digits.size();
        const auto parsed = std::from_chars(digits.data(), end, byte, 16);
        if (digits.size() != 2 || parsed.ec != std::errc() || parsed.ptr != end) return false;
        decoded += static_cast<char>(byte);
        at += 2;
    }
    return true;
}

}  // namespace fabricd

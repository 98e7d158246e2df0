#include "fabricd/ctl/dashboard/picture_query.hpp"

#include <algorithm>
#include <charconv>

namespace fabricd {

namespace {

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
    Number number = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, number);
    const bool is_number = parsed.ec == std::errc() && parsed.ptr == end;
    return is_number ? std::optional(number) : std::nullopt;
}

/// What encodeURIComponent() made of it. A percent sign without two digits stays one.
std::string decoded(std::string_view text) {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
        unsigned char byte = 0;
        const char* const digits = text.data() + i + 1;
        const bool is_code = text[i] == '%' && text.size() - i > 2 &&
                             std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
        plain += is_code ? static_cast<char>(byte) : text[i];
        if (is_code) i += 2;
    }
    return plain;
}

/// Not within a letter: half of one is no UTF-8, and can't be in what it is searched in.
std::string cut(std::string text, std::size_t bytes) {
    constexpr std::size_t kMaxLetter = 4;  // bytes
    if (text.size() <= bytes) return text;
    const auto is_inside = [&](std::size_t at) {
        return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
    };
    std::size_t end = bytes;
    while (bytes - end < kMaxLetter && is_inside(end)) --end;
    text.resize(is_inside(end) ? bytes : end);
    return text;
}

void take(PictureQuery& query, std::string_view name, std::string_view value) {
    if (name == "since") query.since = parse_number<std::uint64_t>(value).value_or(0);
    if (name == "match") query.match = cut(decoded(value), PictureQuery::kMaxMatch);
    if (name == "user") query.user = parse_number<std::uint32_t>(value);
    const auto list = std::find(kPagedLists.begin(), kPagedLists.end(), name);
    if (list == kPagedLists.end()) return;
    query.from[static_cast<std::size_t>(list - kPagedLists.begin())] =
        parse_number<std::size_t>(value).value_or(0);
}

}  // namespace

std::string PictureQuery::key() const {
    std::string key = since == 0 ? "history" : "";
    for (const std::size_t first : from) key += "," + std::to_string(first);
    key += user ? ",of " + std::to_string(*user) : ",";
    return key + "," + match;
}

PictureQuery parse_picture_query(std::string_view query) {
    PictureQuery wanted;
    while (!query.empty()) {
        const std::string_view part = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(part.size() + 1, query.size()));
        const std::size_t sign = part.find('=');
        if (sign == part.npos) continue;
        take(wanted, part.substr(0, sign), part.substr(sign + 1));
    }
    return wanted;
}

}  // namespace fabricd

#include "fabricd/data/peers/chunk_query.hpp"

#include <charconv>
#include <cstdio>

#include "fabricd/data/silo/url_text.hpp"

namespace fabricd {

namespace {

constexpr std::string_view kPlace = "/v1/chunk?path=";
constexpr std::size_t kWordDigits = 16;
constexpr std::size_t kNamespaceBytes = 4096;

template <typename Number>
bool parse_number(std::string_view text, Number& number, int base) noexcept {
    const auto* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, number, base);
    return !text.empty() && parsed.ec == std::errc() && parsed.ptr == end;
}

// What follows `name` up to the next '&'; moves on behind it.
std::optional<std::string_view> take_value(std::string_view& text, std::string_view name) {
    if (!text.starts_with(name)) return std::nullopt;
    text.remove_prefix(name.size());
    const std::string_view value = text.substr(0, text.find('&'));
    text.remove_prefix(value.size());
    return value;
}

}  // namespace

std::string version_text(const FileVersion& version) {
    std::string text;
    for (const std::uint64_t word : version.words) {
        char digits[kWordDigits + 1];
        std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(word));
        text += digits;
    }
    return text;
}

std::string chunk_target(const ChunkName& chunk) {
    return std::string(kPlace) + url_encoded(chunk.path, false) +
           "&version=" + version_text(chunk.version) + "&number=" + std::to_string(chunk.number);
}

std::optional<ChunkName> parse_chunk_target(std::string_view target) {
    ChunkName chunk;
    const auto path = take_value(target, kPlace);
    if (!path || !url_decode(*path, chunk.path)) return std::nullopt;
    // "/at/path": below a silo's place, as all of the namespace.
    if (chunk.path.size() > kNamespaceBytes || !chunk.path.starts_with('/')) return std::nullopt;
    const auto version = take_value(target, "&version=");
    if (!version || version->size() != chunk.version.words.size() * kWordDigits) {
        return std::nullopt;
    }
    for (std::size_t i = 0; i < chunk.version.words.size(); ++i) {
        const auto digits = version->substr(i * kWordDigits, kWordDigits);
        if (!parse_number(digits, chunk.version.words[i], 16)) return std::nullopt;
    }
    const auto number = take_value(target, "&number=");
    if (!number || !target.empty() || !parse_number(*number, chunk.number, 10)) return std::nullopt;
    return chunk;
}

std::string checksum_text(std::uint32_t checksum) {
    char digits[16];
    std::snprintf(digits, sizeof digits, "%08x", checksum);
    return digits;
}

std::optional<std::uint32_t> parse_checksum(std::string_view text) noexcept {
    std::uint32_t checksum = 0;
    if (text.size() != 8 || !parse_number(text, checksum, 16)) return std::nullopt;
    return checksum;
}

}  // namespace fabricd

#include "fabricd/data/silo/web_version.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace fabricd {

namespace {

// The first byte of a version says what the others are.
enum class VersionKind : std::uint8_t {
    kText = 1,    // the ETag: its length in the second byte, then its bytes
    kDigest = 2,  // 32 hexadecimal digits in words 1 and 2, the number of parts in word 3 (0: none)
    kHash = 3,    // of an ETag that is longer, in words 1 to 3
    kTime = 4,    // seconds in word 1
};

constexpr std::size_t kTextBytes = sizeof(FileVersion::words) - 2;
constexpr std::size_t kTagDigits = 32;
// Seconds: of one clock the next would do, but files and answers may have two.
constexpr std::int64_t kSettled = 2;
constexpr std::int64_t kSettledByOwnClock = 60;
constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

VersionKind kind_of(const FileVersion& version) noexcept {
    return static_cast<VersionKind>(version.words[0] & 0xff);
}

// What RFC 9110 allows between the quotes, and ASCII: it goes into a header again.
bool can_be_sent(std::string_view etag) noexcept {
    return !etag.empty() && std::all_of(etag.begin(), etag.end(), [](char letter) {
        return letter > 0x20 && letter < 0x7f && letter != '"';
    });
}

bool parse_digits(std::string_view text, std::uint64_t& word, int base) noexcept {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), word, base);
    return error == std::errc() && end == text.data() + text.size();
}

std::string digest_text(const FileVersion& version) {
    char text[64];
    std::snprintf(text, sizeof text, "%016llx%016llx",
                  static_cast<unsigned long long>(version.words[1]),
                  static_cast<unsigned long long>(version.words[2]));
    const std::string parts = version.words[3] == 0 ? "" : "-" + std::to_string(version.words[3]);
    return text + parts;
}

// What S3 makes: the MD5 of an object, or of the MD5s of its parts with their number.
std::optional<FileVersion> digest_version(std::string_view etag) {
    FileVersion version;
    version.words[0] = static_cast<std::uint64_t>(VersionKind::kDigest);
    if (etag.size() < kTagDigits || !parse_digits(etag.substr(0, 16), version.words[1], 16) ||
        !parse_digits(etag.substr(16, 16), version.words[2], 16)) {
        return std::nullopt;
    }
    if (etag.size() > kTagDigits + 1)
        parse_digits(etag.substr(kTagDigits + 1), version.words[3], 10);
    // Capital letters, other signs and zeros in front would not come back as they were.
    if (digest_text(version) != etag) return std::nullopt;
    return version;
}

FileVersion text_version(std::string_view etag) noexcept {
    FileVersion version;
    char bytes[sizeof version.words] = {};
    bytes[0] = static_cast<char>(VersionKind::kText);
    bytes[1] = static_cast<char>(etag.size());
    std::memcpy(bytes + 2, etag.data(), etag.size());
    std::memcpy(version.words.data(), bytes, sizeof bytes);
    return version;
}

// FNV-1a from three beginnings. It guards against accidents: a server that lies may do so anyway.
FileVersion hash_version(std::string_view etag) noexcept {
    FileVersion version;
    version.words[0] = static_cast<std::uint64_t>(VersionKind::kHash);
    for (std::size_t i = 1; i < version.words.size(); ++i) {
        std::uint64_t hash = 0xcbf29ce484222325U + i * 0x9e3779b97f4a7c15U;
        for (const char letter : etag) {
            hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
            hash ^= hash >> 29;
        }
        version.words[i] = hash;
    }
    return version;
}

FileVersion time_version(std::int64_t seconds) noexcept {
    FileVersion version;
    version.words[0] = static_cast<std::uint64_t>(VersionKind::kTime);
    version.words[1] = static_cast<std::uint64_t>(seconds);
    return version;
}

}  // namespace

std::optional<FileVersion> version_of_etag(std::string_view etag) noexcept {
    if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
        etag = etag.substr(1, etag.size() - 2);
    }
    // A weak one has quotes within.
    if (!can_be_sent(etag)) return std::nullopt;
    if (const auto digest = digest_version(etag)) return digest;
    return etag.size() <= kTextBytes ? text_version(etag) : hash_version(etag);
}

std::optional<FileVersion> version_of_fields(std::string_view etag,
                                             std::string_view last_modified) noexcept {
    if (const auto version = version_of_etag(etag)) return version;
    const auto seconds = parse_http_date(last_modified);
    return seconds ? std::optional(time_version(*seconds)) : std::nullopt;
}

std::string condition_of(const FileVersion& version) {
    switch (kind_of(version)) {
        case VersionKind::kText: {
            char bytes[sizeof version.words];
            std::memcpy(bytes, version.words.data(), sizeof bytes);
            const auto length = static_cast<unsigned char>(bytes[1]);
            const std::string etag(bytes + 2, std::min<std::size_t>(length, kTextBytes));
            return can_be_sent(etag) ? "If-Match: \"" + etag + "\"" : "";
        }
        case VersionKind::kDigest:
            return "If-Match: \"" + digest_text(version) + "\"";
        case VersionKind::kTime:
            return "If-Unmodified-Since: " +
                   format_http_date(static_cast<std::int64_t>(version.words[1]));
        case VersionKind::kHash:
            break;
    }
    return "";
}

std::optional<bool> is_version(const FileVersion& version, std::string_view etag,
                               std::string_view last_modified) noexcept {
    const bool by_time = kind_of(version) == VersionKind::kTime;
    const auto other = by_time ? version_of_fields("", last_modified) : version_of_etag(etag);
    if (!other) return std::nullopt;
    return *other == version;
}

std::int64_t settles_in(const FileVersion& version, std::string_view date,
                        std::int64_t now) noexcept {
    if (kind_of(version) != VersionKind::kTime) return 0;
    const auto changed = static_cast<std::int64_t>(version.words[1]);
    const auto answered = parse_http_date(date);
    const std::int64_t settled = changed + (answered ? kSettled : kSettledByOwnClock);
    return std::max<std::int64_t>(0, settled - answered.value_or(now));
}

std::optional<std::int64_t> parse_http_date(std::string_view text) noexcept {
    constexpr std::size_t kBytes = 29;
    if (text.size() != kBytes) return std::nullopt;
    char month[4] = "";
    std::tm time{};
    const std::string line(text.substr(5));
    int end = 0;
    if (std::sscanf(line.c_str(), "%2d %3s %4d %2d:%2d:%2d GMT%n", &time.tm_mday, month,
                    &time.tm_year, &time.tm_hour, &time.tm_min, &time.tm_sec, &end) != 6) {
        return std::nullopt;
    }
    const auto* const found = std::find_if(std::begin(kMonths), std::end(kMonths), [&](auto name) {
        return std::strcmp(name, month) == 0;
    });
    if (found == std::end(kMonths)) return std::nullopt;
    time.tm_mon = static_cast<int>(found - std::begin(kMonths));
    time.tm_year -= 1900;
    const std::int64_t seconds = ::timegm(&time);
    // Days that are not in the calendar, other separators: they do not come back as they were.
    if (format_http_date(seconds) != text) return std::nullopt;
    return seconds;
}

std::string format_http_date(std::int64_t seconds) {
    std::tm time{};
    const std::time_t moment = seconds;
    if (::gmtime_r(&moment, &time) == nullptr) return "";
    char text[64];
    std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", kDays[time.tm_wday],
                  time.tm_mday, kMonths[time.tm_mon], time.tm_year + 1900, time.tm_hour,
                  time.tm_min, time.tm_sec);
    return text;
}

}  // namespace fabricd

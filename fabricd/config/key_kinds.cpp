#include "fabricd/config/key_kinds.hpp"

#include <pwd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <sstream>

namespace fabricd {

namespace {

using fabricshm::format_bytes;
using fabricshm::kGiB;
using fabricshm::kMiB;

// The whole text has to be the number: "8 GiB" for a count is refused, not read as 8.
std::optional<std::int64_t> parse_integer(const std::string& text, int base = 10) {
    std::int64_t value = 0;
    const auto* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value, base);
    if (error != std::errc{} || stop != end || text.empty()) return std::nullopt;
    return value;
}

// The default as text comes from an untouched Config, so that it cannot differ from what holds
// without the key.
ConfigKey finish(ConfigKey key) {
    key.fallback = key.get(Config{});
    return key;
}

std::optional<std::uint32_t> parse_user(const std::string& text) {
    if (const auto number = parse_integer(text)) {
        // 2^32 - 1 means "no user" to the kernel.
        if (*number < 0 || *number >= 0xffffffffLL) return std::nullopt;
        return static_cast<std::uint32_t>(*number);
    }
    const ::passwd* found = ::getpwnam(text.c_str());  // start-up only: there is one thread
    if (found == nullptr) return std::nullopt;
    return found->pw_uid;
}

}  // namespace

ConfigKey text_key(const char* name, const char* kind, Field<std::string> field, const char* help) {
    ConfigKey key{name, kind, "", "", help, {}, {}};
    key.set = [field](Config& config, const std::string& text) {
        // Control characters would break the one-line messages and have no use in any of these.
        if (std::any_of(text.begin(), text.end(),
                        [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
            return false;
        }
        field(config) = text;
        return true;
    };
    key.get = [field](const Config& config) { return read(field, config); };
    return finish(std::move(key));
}

// Relative paths would mean something else in a service than in the shell in which they were tried.
ConfigKey path_key(const char* name, Field<std::string> field, const char* help) {
    ConfigKey key = text_key(name, "absolute path", field, help);
    key.set = [take = key.set](Config& config, const std::string& text) {
        return (text.empty() || text[0] == '/') && take(config, text);
    };
    return key;
}

ConfigKey paths_key(const char* name, Field<std::vector<std::string>> field, const char* help) {
    ConfigKey key{name, "list of absolute paths", "", "", help, {}, {}};
    key.is_list = true;
    key.set = [field](Config& config, const std::string& text) {
        std::vector<std::string> paths;
        std::istringstream words(text);
        for (std::string word; std::getline(words, word, ',');) {
            const bool is_plain = std::none_of(word.begin(), word.end(), [](unsigned char c) {
                return c < 0x20 || c == 0x7f;  // see text_key()
            });
            if (word.empty() || word[0] != '/' || !is_plain) return false;
            paths.push_back(word);
        }
        field(config) = std::move(paths);
        return true;
    };
    key.get = [field](const Config& config) {
        std::string text;
        for (const auto& path : read(field, config)) text += (text.empty() ? "" : ",") + path;
        return text;
    };
    return finish(std::move(key));
}

ConfigKey choice_key(const char* name, std::vector<std::string> words, Field<std::string> field,
                     const char* help) {
    std::string kind = "one of";
    for (const auto& word : words) kind += (word == words.front() ? " " : ", ") + word;
    ConfigKey key{name, kind, "", "", help, {}, {}};
    key.set = [words, field](Config& config, const std::string& text) {
        if (std::find(words.begin(), words.end(), text) == words.end()) return false;
        field(config) = text;
        return true;
    };
    key.get = [field](const Config& config) { return read(field, config); };
    return finish(std::move(key));
}

ConfigKey size_key(const char* name, Bytes low, Bytes high, const char* zero, Field<Bytes> field,
                   const char* help) {
    std::string range = format_bytes(low) + " to " + format_bytes(high);
    if (zero != nullptr) range += std::string(", or 0: ") + zero;
    // K, M, G, T: powers of 1024, as fabricshm::parse_bytes() has it.
    ConfigKey key{name, "size in bytes, K, M, G or T", range, "", help, {}, {}};
    key.set = [=](Config& config, const std::string& text) {
        const auto bytes = fabricshm::parse_bytes(text);
        if (!bytes.ok()) return false;
        const bool is_special = zero != nullptr && *bytes == 0;
        if (!is_special && (*bytes < low || *bytes > high)) return false;
        field(config) = *bytes;
        return true;
    };
    key.get = [field](const Config& config) {
        const Bytes bytes = read(field, config);
        // In the largest unit that leaves no fraction: what is printed has to read back the same.
        for (const auto& [unit, suffix] : {std::pair{kTiB, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}}) {
            if (bytes != 0 && bytes % unit == 0) return std::to_string(bytes / unit) + suffix;
        }
        return std::to_string(bytes);
    };
    return finish(std::move(key));
}

// Also for a field that is no wider than its range needs.
template <typename Whole>
ConfigKey whole_key(const char* name, std::int64_t low, std::int64_t high, Field<Whole> field,
                    const char* help) {
    ConfigKey key{name, "whole number", std::to_string(low) + " to " + std::to_string(high),
                  "",   help,           {},
                  {}};
    key.set = [=](Config& config, const std::string& text) {
        const auto value = parse_integer(text);
        if (!value || *value < low || *value > high) return false;
        field(config) = static_cast<Whole>(*value);  // in the range, which `Whole` holds
        return true;
    };
    key.get = [field](const Config& config) { return std::to_string(read(field, config)); };
    key.is_quoted = false;
    return finish(std::move(key));
}

ConfigKey count_key(const char* name, std::int64_t low, std::int64_t high,
                    Field<std::int64_t> field, const char* help) {
    return whole_key(name, low, high, field, help);
}

ConfigKey count_key(const char* name, int low, int high, Field<int> field, const char* help) {
    return whole_key(name, low, high, field, help);
}

ConfigKey words_key(const char* name, std::vector<std::string> words, Field<std::string> field,
                    const char* help) {
    ConfigKey key = choice_key(name, words, field, help);
    // The words are those of a choice, only that there may be several.
    key.kind.replace(0, std::string("one of").size(), "comma-separated words of");
    key.set = [words, field](Config& config, const std::string& text) {
        std::istringstream given(text);
        for (std::string word; std::getline(given, word, ',');) {
            if (std::find(words.begin(), words.end(), word) == words.end()) return false;
        }
        field(config) = text;
        return true;
    };
    return key;
}

// 15 digits: defaults such as 0.1 print as they were written.
ConfigKey number_key(const char* name, double low, double high, Field<double> field,
                     const char* help) {
    const auto shown = [](double value) {
        char text[32];
        std::snprintf(text, sizeof text, "%.15g", value);
        return std::string(text);
    };
    ConfigKey key{name, "number", shown(low) + " to " + shown(high), "", help, {}, {}};
    key.set = [=](Config& config, const std::string& text) {
        double value = 0;
        const auto* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (error != std::errc{} || stop != end) return false;
        // Written so that NaN is refused.
        if (!(value >= low && value <= high)) return false;
        field(config) = value;
        return true;
    };
    key.get = [field, shown](const Config& config) { return shown(read(field, config)); };
    key.is_quoted = false;
    return finish(std::move(key));
}

// Both limits are in the help, in the unit that suits them.
ConfigKey duration_key(const char* name, std::chrono::milliseconds low,
                       std::chrono::milliseconds high, Field<Duration> field, const char* help) {
    const auto range = fabricshm::format_duration(low) + " to " + fabricshm::format_duration(high);
    ConfigKey key{name, "duration in us, ms, s or min", range, "", help, {}, {}};
    key.set = [=](Config& config, const std::string& text) {
        const auto length = fabricshm::parse_duration(text);
        if (!length.ok() || *length < low || *length > high) return false;
        field(config) = *length;
        return true;
    };
    key.get = [field](const Config& config) {
        const auto length =
            std::chrono::duration_cast<std::chrono::microseconds>(read(field, config)).count();
        // In the largest unit that leaves no fraction, as with sizes.
        if (length % 1000000 == 0) return std::to_string(length / 1000000) + "s";
        if (length % 1000 == 0) return std::to_string(length / 1000) + "ms";
        return std::to_string(length) + "us";
    };
    return finish(std::move(key));
}

ConfigKey flag_key(const char* name, Field<bool> field, const char* help) {
    ConfigKey key{name, "true or false", "", "", help, {}, {}};
    key.set = [field](Config& config, const std::string& text) {
        if (text != "true" && text != "false") return false;
        field(config) = text == "true";
        return true;
    };
    key.get = [field](const Config& config) {
        return std::string(read(field, config) ? "true" : "false");
    };
    key.is_quoted = false;
    return finish(std::move(key));
}

// A mode without the owner's bits would lock the daemon's own user out.
ConfigKey mode_key(const char* name, Field<unsigned> field, const char* help) {
    ConfigKey key{name, "octal file mode", "0600 to 0777", "", help, {}, {}};
    key.set = [field](Config& config, const std::string& text) {
        const auto mode = parse_integer(text, 8);
        // As numbers: from 0600 on both of the owner's bits are set.
        if (!mode || *mode < 0600 || *mode > 0777) return false;
        field(config) = static_cast<unsigned>(*mode);
        return true;
    };
    key.get = [field](const Config& config) {
        char text[16];
        std::snprintf(text, sizeof text, "%04o", read(field, config));
        return std::string(text);
    };
    return finish(std::move(key));
}

ConfigKey users_key(const char* name, Field<std::vector<std::uint32_t>> field, const char* help) {
    ConfigKey key{name, "list of user names or ids", "", "", help, {}, {}};
    key.is_list = true;
    key.is_quoted = false;  // printed as numbers
    key.set = [field](Config& config, const std::string& text) {
        std::vector<std::uint32_t> users;
        std::istringstream words(text);
        for (std::string word; std::getline(words, word, ',');) {
            const auto user = parse_user(word);
            if (!user) return false;
            users.push_back(*user);
        }
        field(config) = std::move(users);
        return true;
    };
    key.get = [field](const Config& config) {
        std::string text;
        for (const auto user : read(field, config)) {
            text += (text.empty() ? "" : ",") + std::to_string(user);
        }
        return text;
    };
    return finish(std::move(key));
}

}  // namespace fabricd

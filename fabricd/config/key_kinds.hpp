// The kinds of configuration keys: each pairs the parsing of a value with the text on it, so that a
// range is written once. The tables are in config_keys.cpp and control_keys.cpp.

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "fabricd/config/config.hpp"

namespace fabricd {

inline constexpr Bytes kTiB = 1024 * fabricshm::kGiB;

/// Reaches one field of a Config, for reading and for writing.
template <typename T>
using Field = T& (*)(Config&);

template <typename T>
const T& read(Field<T> field, const Config& config) {
    return field(const_cast<Config&>(config));  // the accessor only forms a reference
}

/// FABRIC_FIELD(pool.capacity) reaches config.pool.capacity.
#define FABRIC_FIELD(member)                \
    [](fabricd::Config & config) -> auto& { \
        return config.member;               \
    }

/// Any text without control characters. `kind` is what --help calls it.
ConfigKey text_key(const char* name, const char* kind, Field<std::string> field, const char* help);

/// Empty or absolute.
ConfigKey path_key(const char* name, Field<std::string> field, const char* help);

/// Absolute, in an order that counts; without commas.
ConfigKey paths_key(const char* name, Field<std::vector<std::string>> field, const char* help);

/// Exactly one of the words.
ConfigKey choice_key(const char* name, std::vector<std::string> words, Field<std::string> field,
                     const char* help);

/// Words of the list, separated by commas, in any number and order.
ConfigKey words_key(const char* name, std::vector<std::string> words, Field<std::string> field,
                    const char* help);

/// `low` to `high` bytes, and 0 where `zero` says what that means.
ConfigKey size_key(const char* name, Bytes low, Bytes high, const char* zero, Field<Bytes> field,
                   const char* help);

/// `low` to `high`, both included. Written without quotes in TOML, as the next one.
ConfigKey count_key(const char* name, std::int64_t low, std::int64_t high,
                    Field<std::int64_t> field, const char* help);
ConfigKey count_key(const char* name, int low, int high, Field<int> field, const char* help);

/// A number without a unit.
ConfigKey number_key(const char* name, double low, double high, Field<double> field,
                     const char* help);

/// Written with its unit. Microseconds are the finest that is kept.
ConfigKey duration_key(const char* name, std::chrono::milliseconds low,
                       std::chrono::milliseconds high, Field<Duration> field, const char* help);

ConfigKey flag_key(const char* name, Field<bool> field, const char* help);

/// 0600 to 0777 in octal: the owner can always connect.
ConfigKey mode_key(const char* name, Field<unsigned> field, const char* help);

/// Names or numbers. Names are looked up when the key is read, so that a user that is missing is
/// reported at the start and not at the first attach.
ConfigKey users_key(const char* name, Field<std::vector<std::uint32_t>> field, const char* help);

}  // namespace fabricd

// The version of a file that a server names: by its ETag, else by its time of change. Packed into a
// FileVersion so that the condition of a request can be made of it again, also after a restart.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

/// Of a strong ETag, with or without its quotes. nullopt: it is weak, empty or cannot be sent back.
std::optional<FileVersion> version_of_etag(std::string_view etag) noexcept;

/// What a server answers: `etag` if it is a strong one, else `last_modified`: what is written twice
/// within a second has one version, so bytes of it count once that second is over; see
/// settles_in(). nullopt: neither.
std::optional<FileVersion> version_of_fields(std::string_view etag,
                                             std::string_view last_modified) noexcept;

/// The header of a request for this version alone: "If-Match: ..." or "If-Unmodified-Since: ...".
/// "": there is no room for its ETag in a FileVersion, so that only the answer can be compared.
std::string condition_of(const FileVersion& version);

/// Whether an answer with these fields is of that version; nullopt: it does not say.
std::optional<bool> is_version(const FileVersion& version, std::string_view etag,
                               std::string_view last_modified) noexcept;

/// In how many seconds at the earliest bytes of an answer with this Date are those of that version
/// alone; 0: they are, as always those of an ETag (RFC 9110, 8.8.2.2). Of an answer without a Date
/// `now` counts, this host's seconds since 1970, with a minute for the difference of the clocks.
std::int64_t settles_in(const FileVersion& version, std::string_view date,
                        std::int64_t now) noexcept;

/// "Sun, 06 Nov 1994 08:49:37 GMT", in seconds since 1970.
std::optional<std::int64_t> parse_http_date(std::string_view text) noexcept;
std::string format_http_date(std::int64_t seconds);

}  // namespace fabricd

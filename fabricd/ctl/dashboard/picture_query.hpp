// PictureQuery: which rows of a picture a page wants to see. docs/dashboard.md.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fabricd {

/// Lists that can be long. A picture has a page of rows of each.
enum class PagedList : std::uint8_t {
    kJobs,
    kTraining,
    kSessions,
    kGroups,
    kArenas,
    kShards,
    kWaiting,
    kPaths
};
inline constexpr std::array<std::string_view, 8> kPagedLists = {
    "jobs", "training", "sessions", "groups", "arenas", "shards", "waiting", "paths"};

struct PictureQuery {
    static constexpr std::size_t kMaxMatch = 256;  // bytes; what is longer is cut after a letter

    std::uint64_t since = 0;  // the picture that the page has; 0: none, and no history
    /// What is of the jobs whose label has this text, or has it in its own name; "": all. See
    /// JobScope.
    std::string match;
    /// With it `match` is a whole label: what is of this user's job of that label, and no more.
    std::optional<std::uint32_t> user;
    std::array<std::size_t, kPagedLists.size()> from{};  // the first row of each list

    std::size_t from_of(PagedList list) const { return from[static_cast<std::size_t>(list)]; }

    /// Equal of queries that the same text answers.
    std::string key() const;
};

/// Of "since=7&match=job%201&user=1000&sessions=500". What is no such part, or no number, counts as
/// not there; of two the last one counts.
PictureQuery parse_picture_query(std::string_view query);

}  // namespace fabricd

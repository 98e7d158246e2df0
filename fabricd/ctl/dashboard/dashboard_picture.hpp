// DashboardPicture: all that the page shows of a daemon, and its text. docs/dashboard.md.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/ctl/dashboard/job_sums.hpp"
#include "fabricd/ctl/dashboard/picture_query.hpp"
#include "fabricd/ctl/picture.hpp"
#include "fabricd/net/cluster_view.hpp"
#include "fabricd/vgpu/vgpu_view.hpp"

namespace fabricd {

/// Parts that a daemon has not, or that were not asked for, are empty.
struct DashboardPicture {
    Picture picture;
    JobSums sums;                     // of `picture`
    std::vector<Decision> decisions;  // the oldest first
    std::vector<EventView> events;    // the oldest first
    ClusterView cluster;
    std::vector<VgpuView> vgpus;
    bool is_whole = false;  // false: what the curves need, and no more
};

/// What a text says of itself.
struct PictureStamp {
    std::uint64_t number = 0;  // rises from picture to picture
    std::int64_t unix_ms = 0;  // when the daemon was asked
    bool answers = false;      // the daemon; else the picture is the last that was known
    std::int64_t since_unix_ms = 0;
    std::string socket;
    std::string error;  // "": it answers
};

/// However much there is of everything, a text is not longer.
inline constexpr std::size_t kMaxPictureBytes = 2'000'000;
/// Of it for the history, whose text comes from elsewhere.
inline constexpr std::size_t kMaxHistoryBytes = 250'000;
/// Rows of a list at a time.
inline constexpr std::size_t kListRows = 500;

/// {"number", "unix_ms", "daemon", "match", "totals", "lists", "jobs", "history"} and the keys of
/// fabricctl's own JSON, side by side: "status", "pools", "arenas", "sessions", "groups",
/// "devices", "telemetry", "waiting", "shards", "vgpus", "cluster", "events", and "decisions", each
/// with "why", the text of `fabricctl why`.
///
/// Each list has at most kListRows rows, and less where a few of them are long; "lists" says of
/// each how many there are. `picture` may be nullptr: no daemon has answered so far. `history` is
/// JSON, or "": none.
std::string picture_text(const PictureStamp& stamp, const DashboardPicture* picture,
                         const PictureQuery& query, std::string_view history);

}  // namespace fabricd

// DashboardPicture: all that the page shows of a daemon, and its JSON. docs/dashboard.md.

#pragma once

#include <string>
#include <vector>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/picture.hpp"
#include "fabricd/net/cluster_view.hpp"
#include "fabricd/vgpu/vgpu_view.hpp"

namespace fabricd {

/// Parts that a daemon has not, or that were not asked for, are empty.
struct DashboardPicture {
    Picture picture;
    std::vector<Decision> decisions;  // the oldest first
    std::vector<EventView> events;    // the oldest first
    ClusterView cluster;
    std::vector<VgpuView> vgpus;
};

/// The keys of fabricctl's own JSON, side by side: "status", "pools", "arenas", "sessions",
/// "groups", "devices", "telemetry", "waiting", "shards", "vgpus", "cluster", "events", and
/// "decisions", each with "why", the text of `fabricctl why`.
Json json_of(const DashboardPicture& picture);

}  // namespace fabricd

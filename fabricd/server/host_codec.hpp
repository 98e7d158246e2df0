// Hosts of the cluster as messages of admin.proto, in both directions. See admin_codec.hpp.

#pragma once

#include "admin.pb.h"
#include "fabricd/net/cluster_view.hpp"

namespace fabricd {

/// The counts, which are for the metrics alone, do not travel.
void pack(const ClusterView& view, admin::v1::HostsReply& message);

/// A state or a lease that is not known becomes "listed" and "none".
ClusterView unpack(const admin::v1::HostsReply& message);

}  // namespace fabricd

// The hosts of the cluster for sessions, a page at a time.

#pragma once

#include "fabricd/net/cluster_view.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// The reply to `asked` of version and first entry. In no cluster: no entries, under version 1.
fabricshm::proto::Hosts hosts_page(const ClusterView& view, const fabricshm::proto::Hosts& asked);

}  // namespace fabricd

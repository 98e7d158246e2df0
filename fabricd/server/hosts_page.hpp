// The hosts of the cluster for sessions, a page at a time.

#pragma once

#include <functional>
#include <memory>

#include "fabricd/net/cluster_view.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// The reply to `asked` of version and first entry. In no cluster: no entries, under version 1.
fabricshm::proto::Hosts hosts_page(const ClusterView& view, const fabricshm::proto::Hosts& asked);

/// As a message; `view` may be empty, or give nothing.
fabricshm::proto::Message hosts_reply(
    const fabricshm::proto::Message& request,
    const std::function<std::shared_ptr<const ClusterView>()>& view);

}  // namespace fabricd

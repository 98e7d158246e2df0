// ClusterDesk: what sessions may ask of the cluster: its hosts, a page at a time, and which ranks
// of a group go on.

#pragma once

#include <functional>
#include <memory>

#include "fabricd/net/cluster_view.hpp"
#include "fabricd/net/survivors.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// The reply to `asked` of version and first entry. In no cluster: no entries, under version 1.
fabricshm::proto::Hosts hosts_page(const ClusterView& view, const fabricshm::proto::Hosts& asked);

/// What sessions may ask of the cluster. Called by the control thread; must not block.
struct ClusterDesk {
    std::function<std::shared_ptr<const ClusterView>()> view;  // may be empty, or give nothing
    std::function<Verdict(const Survivors&)> settle;           // empty: kNoStore
};

/// Whether this is a request to the cluster.
bool is_for_cluster(fabricshm::proto::Type type) noexcept;
/// The answer to one.
fabricshm::proto::Message cluster_reply(const fabricshm::proto::Message& request,
                                        const ClusterDesk& desk);

}  // namespace fabricd

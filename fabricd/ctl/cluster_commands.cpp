#include "fabricd/ctl/cluster_commands.hpp"

#include <cstdio>

#include "fabricd/ctl/table.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Result;

namespace {

std::string since_text(std::int64_t milliseconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(milliseconds) / 1e3);
    return text;
}

std::string text_of(const ClusterView& view) {
    if (view.cluster.empty()) return "no cluster (cluster.etcd, cluster.hosts)\n";
    std::string text = "cluster " + view.cluster + " (" + view.store + "), host " + view.host;
    if (view.store == "etcd") {
        text += std::string(", lease ") + name_of(view.lease);
        if (view.lease_ms > 0) text += " " + since_text(view.lease_ms);
    }
    text += "\n";
    if (!view.admits) text += "ALARM no groups over several hosts are made now\n";
    if (!view.trouble.empty()) text += "ALARM " + view.trouble + "\n";
    Table table(
        {{"HOST"}, {"STATE"}, {"SINCE", kRight}, {"INCARNATION", kRight}, {"POOL"}, {"FENCE"}});
    for (const HostView& host : view.hosts) {
        // Of a listed host nothing is known.
        const bool is_known = host.state != HostState::kListed;
        table.add({host.name + (host.is_self ? " *" : ""), name_of(host.state),
                   is_known ? since_text(host.state_ms) : "-",
                   is_known ? std::to_string(host.incarnation) : "-", host.pool, host.fence});
    }
    return text + table.text();
}

}  // namespace

Json json_of(const ClusterView& view) {
    Json hosts = Json::array();
    for (const HostView& host : view.hosts) {
        hosts.push_back({{"name", host.name},
                         {"incarnation", host.incarnation},
                         {"state", name_of(host.state)},
                         {"newest", host.is_newest},
                         {"self", host.is_self},
                         {"state_ms", host.state_ms},
                         {"pool", host.pool},
                         {"address", host.address},
                         {"fence", host.fence}});
    }
    return {{"cluster", view.cluster},
            {"store", view.store},
            {"host", view.host},
            {"incarnation", view.incarnation},
            {"lease", name_of(view.lease)},
            {"lease_ms", view.lease_ms},
            {"admits", view.admits},
            {"trouble", view.trouble},
            {"hosts", hosts}};
}

Result<void> serve_hosts(const CtlOptions& options, AdminClient& client) {
    if (!options.host_action.empty()) {
        FABRIC_TRY_VOID(client.fence_host(options.subject));
    }
    FABRIC_TRY(const ClusterView view, client.hosts());
    if (!options.host_action.empty() && view.cluster.empty() && !options.json) {
        // A guest of this daemon's pool: there is no table to show it in.
        std::printf("host %s counts as fenced: its sessions, which were given up, have ended\n",
                    options.subject.c_str());
        return {};
    }
    std::printf("%s",
                options.json ? (one_line(json_of(view)) + "\n").c_str() : text_of(view).c_str());
    return {};
}

}  // namespace fabricd

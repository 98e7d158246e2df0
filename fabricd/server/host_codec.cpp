#include "fabricd/server/host_codec.hpp"

#include "fabricd/server/admin_codec.hpp"

namespace fabricd {

namespace {

HostState state_named(const std::string& name) {
    for (const HostState state : {HostState::kUp, HostState::kBack, HostState::kSuspect,
                                  HostState::kLost, HostState::kFenced}) {
        if (name == name_of(state)) return state;
    }
    return HostState::kListed;
}

LeaseStanding standing_named(const std::string& name) {
    for (const LeaseStanding standing :
         {LeaseStanding::kHeld, LeaseStanding::kStale, LeaseStanding::kEnded}) {
        if (name == name_of(standing)) return standing;
    }
    return LeaseStanding::kNone;
}

}  // namespace

void pack(const ClusterView& view, admin::v1::HostsReply& message) {
    message.set_cluster(view.cluster);
    message.set_store(view.store);
    message.set_host(view.host);
    message.set_incarnation(view.incarnation);
    message.set_lease(name_of(view.lease));
    message.set_lease_ms(view.lease_ms);
    message.set_admits(view.admits);
    message.set_trouble(printable(view.trouble));
    for (const HostView& host : view.hosts) {
        auto& row = *message.add_hosts();
        row.set_name(host.name);
        row.set_incarnation(host.incarnation);
        row.set_state(name_of(host.state));
        row.set_newest(host.is_newest);
        row.set_self(host.is_self);
        row.set_state_ms(host.state_ms);
        row.set_pool(printable(host.pool));
        row.set_address(printable(host.address));
        row.set_fence(printable(host.fence));
    }
}

ClusterView unpack(const admin::v1::HostsReply& message) {
    ClusterView view;
    view.cluster = message.cluster();
    view.store = message.store();
    view.host = message.host();
    view.incarnation = message.incarnation();
    view.lease = standing_named(message.lease());
    view.lease_ms = message.lease_ms();
    view.admits = message.admits();
    view.trouble = message.trouble();
    for (const auto& row : message.hosts()) {
        view.hosts.push_back({row.name(), row.incarnation(), state_named(row.state()), row.newest(),
                              row.self(), row.state_ms(), row.pool(), row.address(), row.fence()});
    }
    return view;
}

}  // namespace fabricd

#include "fabricd/server/cluster_desk.hpp"

#include <algorithm>
#include <cstring>

#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

namespace {

proto::HostState on_wire(HostState state) {
    switch (state) {
        case HostState::kListed:
            return proto::HostState::kListed;
        case HostState::kUp:
            return proto::HostState::kUp;
        case HostState::kBack:
            return proto::HostState::kBack;
        case HostState::kSuspect:
            return proto::HostState::kSuspect;
        case HostState::kLost:
            return proto::HostState::kLost;
        case HostState::kFenced:
            break;
    }
    return proto::HostState::kFenced;
}

proto::FenceStage on_wire(FenceStage stage) {
    switch (stage) {
        case FenceStage::kNone:
            return proto::FenceStage::kNone;
        case FenceStage::kPerson:
            return proto::FenceStage::kPerson;
        case FenceStage::kCommand:
            return proto::FenceStage::kCommand;
        case FenceStage::kFailed:
            return proto::FenceStage::kFailed;
        case FenceStage::kCommanded:
            return proto::FenceStage::kCommanded;
        case FenceStage::kBoot:
            return proto::FenceStage::kBoot;
        case FenceStage::kSelf:
            return proto::FenceStage::kSelf;
        case FenceStage::kLeft:
            return proto::FenceStage::kLeft;
        case FenceStage::kOperator:
            return proto::FenceStage::kOperator;
        case FenceStage::kOther:
            break;
    }
    return proto::FenceStage::kOther;
}

proto::Settled on_wire(Verdict verdict) {
    switch (verdict) {
        case Verdict::kPending:
            return proto::Settled::kPending;
        case Verdict::kTheseGoOn:
            return proto::Settled::kTheseGoOn;
        case Verdict::kOthersGoOn:
            return proto::Settled::kOthersGoOn;
        case Verdict::kNoStore:
            return proto::Settled::kNoStore;
        case Verdict::kTooMany:
            break;
    }
    return proto::Settled::kTooMany;
}

}  // namespace

proto::Hosts hosts_page(const ClusterView& view, const proto::Hosts& asked) {
    proto::Hosts page;
    std::memset(&page, 0, sizeof page);
    page.version = std::max<std::uint64_t>(view.version, 1);
    page.total = static_cast<std::uint32_t>(view.hosts.size());
    page.flags = (admits_at(view, BootClock::now()) ? proto::kHostsAdmit : 0) |
                 (view.cluster.empty() ? 0 : proto::kHostsInCluster);
    page.first = std::min(asked.first, page.total);
    if (asked.version == page.version && asked.first == 0) return page;
    page.count = std::min<std::uint32_t>(page.total - page.first, proto::kHostsPerPage);
    for (std::uint32_t i = 0; i < page.count; ++i) {
        const HostView& host = view.hosts[page.first + i];
        proto::HostEntry& entry = page.entries[i];
        // A host's name is shorter: is_host_name().
        std::strncpy(entry.name, host.name.c_str(), sizeof entry.name - 1);
        entry.incarnation = host.incarnation;
        entry.state = on_wire(host.state);
        entry.flags = host.is_self ? proto::kHostSelf : 0;
        page.state_ms[i] = static_cast<std::uint64_t>(std::max<std::int64_t>(host.state_ms, 0));
        page.fence[i] = on_wire(host.fence_stage);
    }
    return page;
}

bool is_for_cluster(proto::Type type) noexcept {
    return type == proto::Type::kHosts || type == proto::Type::kSurvivors;
}

proto::Message cluster_reply(const proto::Message& request, const ClusterDesk& desk) {
    proto::Message reply = proto::make_reply(request);
    if (proto::type_of(request.header) == proto::Type::kSurvivors) {
        Survivors survivors;
        std::ranges::copy(request.survivors.group, survivors.group.begin());
        std::ranges::copy(request.survivors.members, survivors.ranks.begin());
        reply.survivors.settled = on_wire(desk.settle ? desk.settle(survivors) : Verdict::kNoStore);
        return reply;
    }
    const auto now = desk.view ? desk.view() : nullptr;
    reply.hosts = hosts_page(now ? *now : ClusterView{}, request.hosts);
    return reply;
}

}  // namespace fabricd

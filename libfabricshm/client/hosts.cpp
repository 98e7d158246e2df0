#include "libfabricshm/client/hosts.hpp"

#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

constexpr int kMaxAttempts = 8;

Result<proto::Hosts> ask_page(Session& session, std::uint64_t version, std::size_t first,
                              TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kHosts, 0);
    request.hosts.version = version;
    request.hosts.first = static_cast<std::uint32_t>(first);
    FABRIC_TRY(const proto::Message reply,
               session.call(request, "ask for hosts", deadline, Retry::kHarmless));
    return reply.hosts;
}

void add(const proto::Hosts& page, KnownHosts& known) {
    known.admits = (page.flags & proto::kHostsAdmit) != 0;
    for (std::size_t i = 0; i < page.count; ++i) {
        const proto::HostEntry& entry = page.entries[i];
        known.hosts.push_back(
            {entry.name, entry.incarnation, entry.state, (entry.flags & proto::kHostSelf) != 0});
    }
}

}  // namespace

Result<bool> ask_hosts(Session& session, KnownHosts& known, TimePoint deadline) {
    FABRIC_TRY(proto::Hosts page, ask_page(session, known.version, 0, deadline));
    if (page.version == known.version) {
        const bool admits = (page.flags & proto::kHostsAdmit) != 0;
        const bool has_changed = known.admits != admits;
        known.admits = admits;
        return has_changed;
    }
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
        KnownHosts fresh;
        fresh.version = page.version;
        add(page, fresh);
        // Pages of two versions would show a host twice, or not at all.
        while (page.version == fresh.version && page.count > 0 && fresh.hosts.size() < page.total) {
            FABRIC_TRY(page, ask_page(session, 0, fresh.hosts.size(), deadline));
            if (page.version == fresh.version) add(page, fresh);
        }
        if (page.version == fresh.version && fresh.hosts.size() == page.total) {
            known = std::move(fresh);
            return true;
        }
        FABRIC_TRY(page, ask_page(session, 0, 0, deadline));
    }
    return Error{Errc::kTimeout, 0, "ask for hosts"};
}

bool is_gone(const KnownHosts& known, std::string_view name, std::uint64_t incarnation) noexcept {
    bool has_newer = false;
    for (const KnownHost& host : known.hosts) {
        if (host.name != name || host.state == proto::HostState::kListed) continue;
        has_newer = has_newer || host.incarnation > incarnation;
        if (host.incarnation != incarnation) continue;
        return host.state == proto::HostState::kLost || host.state == proto::HostState::kFenced;
    }
    return has_newer;
}

}  // namespace fabricshm

#include "libfabricshm/client/hosts.hpp"

#include <algorithm>
#include <thread>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

constexpr int kMaxAttempts = 8;

// How often a watch asks while a rank waits, and how long it waits for an answer: the rank serves
// no peer meanwhile. A daemon that does not answer is asked more seldom.
constexpr Duration kAskAgain = std::chrono::milliseconds(250);
constexpr Duration kAskAgainWithout = std::chrono::seconds(2);
constexpr Duration kAnswer = std::chrono::milliseconds(20);

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
    known.in_cluster = (page.flags & proto::kHostsInCluster) != 0;
    for (std::size_t i = 0; i < page.count; ++i) {
        const proto::HostEntry& entry = page.entries[i];
        known.hosts.push_back({entry.name, entry.incarnation, entry.state,
                               (entry.flags & proto::kHostSelf) != 0, page.state_ms[i],
                               page.fence[i]});
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

Result<KnownHost> HostWatch::own_place(TimePoint deadline) {
    FABRIC_TRY_VOID(ask_hosts(session_, known_, deadline));
    for (const KnownHost& host : known_.hosts) {
        if (!host.is_self) continue;
        if (known_.admits) return host;
        return explain({Errc::kBusy, 0, "join"},
                       "fabricd on host %s admits no groups over several hosts now: see fabricctl "
                       "hosts there",
                       host.name.c_str());
    }
    // Its ranks would be watched by none of the others.
    if (known_.in_cluster) {
        return explain({Errc::kBusy, 0, "join"},
                       "fabricd has no place in its cluster now, and so no groups over several "
                       "hosts are made: see fabricctl hosts");
    }
    return KnownHost{};
}

Result<KnownHost> HostWatch::await_place(TimePoint deadline) {
    const TimePoint until = std::min(deadline, Clock::now() + kPlaceWait);
    while (true) {
        auto place = own_place(deadline);
        const bool is_listed =
            std::ranges::any_of(known_.hosts, [](const KnownHost& host) { return host.is_self; });
        const bool waits = !place.ok() && place.error().code == Errc::kBusy && !is_listed;
        if (!waits || Clock::now() + kAskAgain >= until) return place;
        std::this_thread::sleep_for(kAskAgain);
    }
}

Result<void> HostWatch::holds(const std::string& name, std::uint64_t incarnation,
                              TimePoint deadline) {
    FABRIC_TRY(const KnownHost own, own_place(deadline));
    if (own.incarnation == incarnation) return {};
    return explain({Errc::kPeer, -1, "shrink"},
                   "host %s was given up by its cluster meanwhile: the others go on without it",
                   name.c_str());
}

bool HostWatch::gone(std::string_view name, std::uint64_t incarnation, TimePoint now) {
    if (now >= ask_at_) {
        const auto asked = ask_hosts(session_, known_, deadline_after(now, kAnswer));
        ask_at_ = deadline_after(now, asked.ok() ? kAskAgain : kAskAgainWithout);
    }
    if (is_gone(known_, name, incarnation)) return true;
    const std::pair key{std::string(name), incarnation};
    for (const KnownHost& host : known_.hosts) {
        if (host.name != name || host.incarnation != incarnation) continue;
        if (host.state != proto::HostState::kSuspect) break;
        const TimePoint since = suspect_since_.try_emplace(key, now).first->second;
        return now - since >= kSuspectFor;
    }
    suspect_since_.erase(key);
    return false;
}

}  // namespace fabricshm

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
constexpr Duration kSettleAgain = std::chrono::milliseconds(20);

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
    const auto own = std::ranges::find_if(known_.hosts, &KnownHost::is_self);
    if (own != known_.hosts.end()) return *own;
    // Its ranks would be watched by none of the others.
    if (known_.in_cluster) {
        return explain({Errc::kBusy, 0, "join"},
                       "fabricd has no place in its cluster now, and so no groups over several "
                       "hosts are made: see fabricctl hosts");
    }
    return KnownHost{};
}

template <typename Ask>
auto HostWatch::while_busy(TimePoint deadline, const Ask& ask) {
    const TimePoint until = std::min(deadline, Clock::now() + kPlaceWait);
    while (true) {
        auto answer = ask();
        const bool is_busy = !answer.ok() && answer.error().code == Errc::kBusy;
        if (!is_busy || Clock::now() + kAskAgain >= until) return answer;
        std::this_thread::sleep_for(kAskAgain);
    }
}

Result<KnownHost> HostWatch::await_place(TimePoint deadline) {
    return while_busy(deadline, [&] { return own_place(deadline); });
}

Result<KnownHost> HostWatch::admitted_place(TimePoint deadline) {
    FABRIC_TRY(KnownHost own, own_place(deadline));
    if (own.name.empty() || known_.admits) return own;
    return explain({Errc::kBusy, 0, "join"},
                   "fabricd on host %s admits no groups over several hosts now: see fabricctl "
                   "hosts there",
                   own.name.c_str());
}

Result<void> HostWatch::await_admission(TimePoint deadline) {
    const auto place = while_busy(deadline, [&] { return admitted_place(deadline); });
    return place.ok() ? Result<void>{} : place.error();
}

Result<void> HostWatch::holds(const std::string& name, std::uint64_t incarnation,
                              TimePoint deadline) {
    FABRIC_TRY(const KnownHost own, while_busy(deadline, [&] { return admitted_place(deadline); }));
    if (own.incarnation == incarnation) return {};
    return explain({Errc::kPeer, -1, "shrink"},
                   "host %s was given up by its cluster meanwhile: the others go on without it",
                   name.c_str());
}

Result<void> HostWatch::settle(const std::array<std::uint8_t, 16>& group,
                               const std::vector<int>& ranks, TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kSurvivors, 0);
    std::ranges::copy(group, request.survivors.group);
    for (const int rank : ranks) {
        request.survivors.members[rank / 64] |= std::uint64_t{1} << rank % 64;
    }
    for (; Clock::now() < deadline; std::this_thread::sleep_for(kSettleAgain)) {
        FABRIC_TRY(const proto::Message reply,
                   session_.call(request, "settle survivors", deadline, Retry::kHarmless));
        switch (reply.survivors.settled) {
            case proto::Settled::kPending:
                continue;
            case proto::Settled::kTheseGoOn:
            case proto::Settled::kNoStore:
                return {};
            case proto::Settled::kOthersGoOn:
                return explain({Errc::kPeer, -1, "shrink"},
                               "other ranks of the group go on without this one, as its cluster "
                               "says");
            case proto::Settled::kTooMany:
                return explain({Errc::kBusy, 0, "shrink"},
                               "fabricd has settled too many groups in this hour");
        }
    }
    return explain({Errc::kBusy, 0, "shrink"},
                   "others may be alive behind a cut, and the cluster's store does not say whether "
                   "they go on: see fabricctl hosts");
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

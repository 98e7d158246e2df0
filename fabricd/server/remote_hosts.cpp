#include "fabricd/server/remote_hosts.hpp"

#include <algorithm>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

namespace {

// Little against a lease.
constexpr Duration kJudgeEvery = std::chrono::milliseconds(100);

}  // namespace

void RemoteHosts::ended(const Peer& host, SessionId session) {
    if (is_of(host, session)) end_(session, "its process ended", SessionEnd::kEnded);
}

void RemoteHosts::died(const Peer& host, SessionId session) {
    if (!is_of(host, session)) return;
    end_(session, "its process ended, and its host writes out what it wrote",
         SessionEnd::kLeftInCaches);
}

bool RemoteHosts::is_of(const Peer& host, SessionId session) const {
    const auto all = registry_.remote_sessions();
    return std::any_of(all.begin(), all.end(), [&](const RemoteSession& known) {
        return known.id == session && known.peer.is_seen_with(host);
    });
}

Result<std::vector<RemoteSession>> RemoteHosts::greet(const Peer& host) {
    const auto sessions = registry_.remote_sessions();
    for (const RemoteSession& known : sessions) {
        if (known.peer.host != host.host || known.peer.machine == host.machine) continue;
        return fabricshm::explain({Errc::kDenied, 0, "greet guest"},
                                  "another machine has sessions under the name %s, and may write "
                                  "(cluster.host_name; fabricctl hosts fence)",
                                  host.host.c_str());
    }
    std::vector<RemoteSession> seen;
    for (const RemoteSession& known : sessions) {
        if (known.peer.host != host.host) continue;
        if (known.peer.boot != host.boot) {
            end_(known.id, "its host was started again", SessionEnd::kEnded);
        } else if (known.peer.is_seen_with(host)) {
            seen.push_back(known);
        }
    }
    return seen;
}

int RemoteHosts::fence(const std::string& host) {
    int ended = 0;
    for (const RemoteSession& known : registry_.remote_sessions()) {
        if (known.peer.host != host || !known.given_up) continue;
        end_(known.id, "a person says that its host writes no more", SessionEnd::kEnded);
        ++ended;
    }
    return ended;
}

void RemoteHosts::judge(const std::shared_ptr<const ClusterView>& view, TimePoint now) {
    if (now < judge_at_) return;
    judge_at_ = fabricshm::deadline_after(now, kJudgeEvery);
    if (view == nullptr) return;
    for (const RemoteSession& known : registry_.remote_sessions()) {
        const auto host =
            std::find_if(view->hosts.begin(), view->hosts.end(), [&](const HostView& one) {
                return one.name == known.peer.host && one.incarnation == known.peer.incarnation;
            });
        // In no cluster, or in one without leases, a person alone knows.
        if (known.peer.incarnation == 0 || host == view->hosts.end()) continue;
        if (host->state == HostState::kFenced) {
            end_(known.id, "its host is fenced", SessionEnd::kEnded);
        } else if (is_gone(host->state) && !known.given_up) {
            end_(known.id, "its host is lost", SessionEnd::kGivenUp);
        }
    }
}

}  // namespace fabricd

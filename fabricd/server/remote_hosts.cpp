#include "fabricd/server/remote_hosts.hpp"

#include <algorithm>
#include <utility>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

namespace {

// Little against a lease.
constexpr Duration kJudgeEvery = std::chrono::milliseconds(100);

// The region that a session may store into when it has read the answer; nullptr: none.
const proto::Region* granted_by(const proto::Message& reply) {
    const proto::Type type = proto::type_of(reply.header);
    if (reply.header.status != 0) return nullptr;
    if (type == proto::Type::kRegionCreate) return &reply.region;
    return type == proto::Type::kTensorCreate ? &reply.tensor.region : nullptr;
}

}  // namespace

void RemoteHosts::ended(const Peer& host, SessionId session) {
    if (is_of(host, session)) end_(session, "its process ended", SessionEnd::kEnded);
}

void RemoteHosts::died(const Peer& host, SessionId session) {
    if (!is_of(host, session)) return;
    end_(session, "its process ended, and its host writes out what it wrote",
         SessionEnd::kLeftInCaches);
}

void RemoteHosts::presented_others(const Peer& host, SessionId session, ArenaId arena) {
    if (!is_of(host, session)) return;
    fabricshm::PresentedFiles presented;
    presented.strange = 1;
    // Refused as if it were shown them itself. To the session its own daemon says why.
    if (registry_.adopt_arena({session, 0}, arena, std::move(presented)).ok()) return;
    fabricshm::log(fabricshm::LogLevel::kWarning,
                   "session %llu (host %s) has other files mapped than arena %llu: nothing is "
                   "granted there until it has closed it",
                   static_cast<unsigned long long>(raw(session)), host.host.c_str(), shown(arena));
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

void RemoteHosts::write_out_by(RangeFlusher::Flush flush,
                               std::function<bool(std::function<void()>)> post) {
    post_ = std::move(post);
    flusher_ = std::make_unique<RangeFlusher>(std::move(flush));
}

// A line of this host's that came out of its caches later would overwrite what the session has
// stored there by then. Others are served meanwhile.
bool RemoteHosts::holds(SessionId session, const proto::Message& reply,
                        std::function<void(const proto::Message&)> send) {
    const proto::Region* granted = granted_by(reply);
    if (flusher_ == nullptr || granted == nullptr) return false;
    const auto cached = registry_.cached_grants().take(session, *granted);
    if (!cached) return false;
    fabricshm::log(fabricshm::LogLevel::kDebug,
                   "region %llu of arena %llu leaves this host's caches",
                   static_cast<unsigned long long>(granted->region_id), shown(cached->arena));
    flusher_->flush({*cached}, [=, this](const Result<void>& flushed) {
        (void)post_([=, this] { written_out(session, reply, flushed, send); });
    });
    return true;
}

void RemoteHosts::written_out(SessionId session, const proto::Message& reply,
                              const Result<void>& flushed,
                              const std::function<void(const proto::Message&)>& send) {
    // A session that has lost its connection meanwhile frees what it finds, or asks again; as after
    // any answer that is lost.
    if (flushed.ok()) return send(reply);
    fabricshm::log(fabricshm::LogLevel::kError, "a region is not granted to another host: %s",
                   describe(flushed.error()).c_str());
    const proto::Region& region = *granted_by(reply);
    registry_.cached_grants().put_back(region);
    // Of a session that has ended meanwhile it is free already.
    (void)registry_.free_region(session, ArenaId{region.arena_id}, RegionId{region.region_id},
                                region.generation);
    send(proto::make_error_reply(reply.header, flushed.error()));
}

}  // namespace fabricd

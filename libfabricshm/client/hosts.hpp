// The hosts of the daemon's cluster, as a session hears of them. docs/hosts.md.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/session.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm {

/// One incarnation of a host.
struct KnownHost {
    std::string name;
    std::uint64_t incarnation = 0;
    proto::HostState state = proto::HostState::kListed;
    bool is_self = false;  // the place of this session's daemon
    // As of the version's first answer: they change without a new one.
    std::uint64_t state_ms = 0;  // how long it has been in its state
    proto::FenceStage fence = proto::FenceStage::kNone;
};

struct KnownHosts {
    std::uint64_t version = 0;     // of the daemon; 0: never asked
    bool admits = false;           // whether groups over several hosts may be made now
    bool in_cluster = false;       // also without a place in it
    std::vector<KnownHost> hosts;  // by name, the newest incarnation of each first
};

/// Brings `known` up to date; whether anything changed. One round trip while nothing does, and one
/// for each five hosts otherwise: cheap enough for ten times per second by a thread that waits.
/// After an error `known` is as before. A daemon that was started again has other versions, and is
/// believed. kTimeout: the hosts changed faster than they could be read.
Result<bool> ask_hosts(Session& session, KnownHosts& known, TimePoint deadline);

/// What a group over a network asks of the hosts of its ranks: which of them are gone. Asks the
/// daemon at most four times a second, and never waits for it for long. One thread at a time.
class HostWatch {
  public:
    /// Borrows the session.
    explicit HostWatch(Session& session) : session_(session) {}

    /// The place of this rank's daemon in its cluster; an empty name: in none. kBusy: it is in a
    /// cluster and has no place there.
    Result<KnownHost> own_place(TimePoint deadline);
    /// The same; asks again while it is kBusy, for kPlaceWait at most: a daemon that has just been
    /// started soon has one.
    Result<KnownHost> await_place(TimePoint deadline);
    /// kBusy: the daemon admits no groups over several hosts, and has not for kPlaceWait: its lease
    /// is stale, which may be over with the next renewal.
    Result<void> await_admission(TimePoint deadline);
    static constexpr Duration kPlaceWait = std::chrono::seconds(5);

    /// Whether the place that own_place() had before is still this host's, and its lease held: then
    /// no other host has given it up. kBusy: not now. kPeer: it was given up.
    Result<void> holds(const std::string& name, std::uint64_t incarnation, TimePoint deadline);

    /// Has the cluster write down that these ranks of a group go on without its others. kPeer:
    /// others do, without these. kBusy: the cluster's store does not answer.
    Result<void> settle(const std::array<std::uint8_t, 16>& group, const std::vector<int>& ranks,
                        TimePoint deadline);

    /// Whether ranks of that incarnation are to be given up by a group over a network, which can
    /// shut their writes out itself: is_gone(), or its record has been gone for kSuspectFor.
    bool gone(std::string_view name, std::uint64_t incarnation, TimePoint now);

    /// After the loss of etcd's data hosts are suspects until they have written their records
    /// again, which takes them a third of their lease.
    static constexpr Duration kSuspectFor = std::chrono::milliseconds(800);

  private:
    template <typename Ask>
    auto while_busy(TimePoint deadline, const Ask& ask);
    Result<KnownHost> admitted_place(TimePoint deadline);

    Session& session_;
    KnownHosts known_;
    TimePoint ask_at_{};
    std::map<std::pair<std::string, std::uint64_t>, TimePoint> suspect_since_;
};

/// Whether ranks of that incarnation are to be given up: it is lost or fenced, or the daemon knows
/// a newer one of the host and this one no more. Not for hosts or incarnations that it has not
/// heard of yet, nor for suspects.
bool is_gone(const KnownHosts& known, std::string_view name, std::uint64_t incarnation) noexcept;

}  // namespace fabricshm

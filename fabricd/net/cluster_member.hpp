// A daemon as a member of its cluster: keeps the lease, follows the other hosts, has lost ones
// fenced. docs/hosts.md, "Leases and fences".

#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "fabricd/net/clone_watch.hpp"
#include "fabricd/net/cluster_store.hpp"
#include "fabricd/net/fence_command.hpp"
#include "fabricd/net/host_lease.hpp"
#include "fabricd/net/trouble_log.hpp"

namespace fabricd {

/// What a daemon keeps of its place, so that the next one on this host goes on with it.
struct KeptPlace {
    Incarnation incarnation = 0;  // 0: none
    std::int64_t lease = 0;
};

struct MemberParts {
    std::string host;
    HostRecord record;  // of this daemon; incarnation 0
    Duration ttl = std::chrono::seconds(5);
    ClusterStore* store = nullptr;  // outlives the member, as all that is pointed to
    FenceRunner* runner = nullptr;  // nullptr: fences are for people
    KeptPlace kept;
    /// Ends all sessions that can write to memory which other hosts may be given, and returns when
    /// their processes are gone. Called before this host calls an incarnation of its own fenced,
    /// and again while it fails. kBusy: it can't know of all of them; then that incarnation is not
    /// called fenced.
    std::function<Result<void>()> end_shared_sessions;
    std::function<void(const KeptPlace&)> keep_place;
    std::function<void(const HostChange&)> note_change = {};
    /// Another one in a simulation, in which a host has the time of its world.
    std::function<BootTime()> clock = BootClock::now;
};

/// Counts since the start.
struct MemberCounts {
    std::uint64_t renewals = 0;
    std::uint64_t failures = 0;  // calls of the store that failed
    std::uint64_t self_fences = 0;
    std::uint64_t commands_done = 0;
    std::uint64_t commands_failed = 0;
};

/// For one thread, which calls step() again and again. All decisions are those of HostLease,
/// HostTable and FenceTable; this class carries them out.
class ClusterMember {
  public:
    explicit ClusterMember(MemberParts parts);

    /// One round: the lease first, then what others did. Waits for news until `wait` has passed at
    /// the longest, and never beyond what its own lease allows.
    void step(Duration wait);

    /// The place is given back; `fenced`: with the word that nothing of it is left behind.
    void leave(bool fenced);

    /// A person's word that the newest incarnation of a host that is not fenced can write no more.
    /// kNotFound: no such host; kInvalid: nothing of it is to be fenced.
    Result<void> confirm_fence(const std::string& host, const std::string& by);

    const HostTable& table() const noexcept { return table_; }
    const FenceTable& fences() const noexcept { return fences_; }
    const HostLease& lease() const noexcept { return lease_; }
    const MemberCounts& counts() const noexcept { return counts_; }
    Incarnation incarnation() const noexcept { return incarnation_; }
    /// What the last call of the store failed with; after one that did not, why this host has no
    /// place; "": neither.
    const std::string& trouble() const noexcept { return trouble_.empty() ? refusal_ : trouble_; }

  private:
    void renew_lease();
    void end_lease(const char* why);
    void end_kept_place();
    void end_sessions();
    void try_to_join();
    void look_for_clone();
    void take_place(const Result<HostPlace>& place);
    bool is_own_past(Incarnation incarnation) const;
    bool fence_own_past();
    void restore();
    std::pair<FenceKey, FenceRecord> end_of(const std::string& name, const HostLife& life) const;
    void write_ends_again();
    bool is_known_to_be_past(const std::string& name, const HostRecord& record) const;
    void write_newer_lives(const std::string& name, Incarnation from);
    void end_when_superseded();
    void follow_news(Duration wait);
    bool hears(BootTime now) const noexcept;
    void take(const StoreNews& news);
    void run_fences();
    void end_needless_command(BootTime now);
    void write_fences();
    void note(const HostChanges& changes);
    bool succeeded(const Result<void>& outcome);

    MemberParts parts_;
    HostLease lease_;
    HostTable table_;
    FenceTable fences_;
    MemberCounts counts_;
    Incarnation incarnation_ = 0;        // 0: not in the cluster
    Incarnation ended_ = 0;              // the newest of this host's own that is over
    std::vector<Incarnation> own_past_;  // of this host, whose sessions may still be there
    std::deque<std::pair<FenceKey, FenceRecord>> unwritten_;
    std::vector<FenceKey> running_;  // the command's, one at most
    bool ends_command_ = false;      // it has become needless
    BootTime next_try_{};            // to join
    BootTime next_renewal_{};
    BootTime heard_at_{};      // when the store last had an answer to what is new
    bool is_away_ = false;     // it had none since
    BootTime resume_until_{};  // the place of the daemon before; its lease is not known
    std::string trouble_;
    std::string refusal_;  // of the last try to join
    TroubleLog troubles_;
    CloneWatch clones_;
    bool must_restore_ = false;  // the store lost its data, and this host's record is not back yet
};

}  // namespace fabricd

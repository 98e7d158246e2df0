// Registry: everything the daemon knows about sessions, arenas, regions, tensors and groups, and
// every rule about them. A state machine without threads, clocks or sockets: the server tells it
// what happened and when, it says what to answer. docs/failure_model.md has the rules in prose.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fabricd/pool/arena.hpp"
#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/device.hpp"
#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/pool_work.hpp"
#include "fabricd/pool/quota.hpp"
#include "fabricd/pool/shard.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/pool/snapshot_walk.hpp"
#include "fabricd/pool/wait_list.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/machine/pool_backend.hpp"
#include "libfabricshm/proto/messages.hpp"
#include "libfabricshm/shm/directive_page.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricd {

using Token = std::array<std::uint8_t, 16>;

/// The process at the other end, as the kernel saw it when it connected.
struct Peer {
    std::int32_t pid = 0;
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
};

/// An answer to a request that had to wait, if only for the end of the call.
struct Answer {
    Ticket to;
    fabricshm::proto::Type type{};
    Error error{Errc::kOk, 0, ""};
    std::variant<std::monostate, fabricshm::proto::ArenaOpen, fabricshm::proto::Tensor,
                 fabricshm::proto::Region, fabricshm::proto::Group, fabricshm::proto::Shard>
        body;
    std::string reason = {};  // of the error, when it was explained
};

/// Requests have passed proto::check_request(). Those that return Result<void> and take a Ticket
/// are answered through take_answers(), perhaps in the same call; when they return an error, that
/// is the answer. All others are answered by what they return. After an error nothing has changed.
/// Used by the control thread only.
class Registry {
  public:
    struct Parts {
        JournalSink* journal = nullptr;
        ArenaMemory* memory = nullptr;
        PoolWork* work = nullptr;
        std::vector<DeviceSpec> devices = {};         // that sessions may say they compute on
        const fabricshm::LinkImage* links = nullptr;  // of the emulated machine; nullptr: none
        CopyWork* copies = nullptr;                   // nullptr: shards don't move
        bool commits_whole = true;                    // PoolBackend::commits_whole()
    };

    Registry(const Limits& limits, const Parts& parts);

    // ---- Start (registry_restore.cpp) --------------------------------------------------------

    /// Takes over what a journal says, before anything else. Sessions and arenas have until
    /// `now + grace` to come back. kCorrupt when the journal contradicts itself.
    Result<void> restore(const PoolImage& image, TimePoint now, Duration grace);

    /// Gives a restored arena its memory without a session presenting it (devdax). False when the
    /// journal does not know the arena.
    bool found_in_pool(ArenaId arena, fabricshm::PoolPiece piece);

    /// Writes all that has to outlive the daemon: the compacted journal.
    Result<void> write_journal(JournalSink& sink) const;

    /// No sessions, no arenas and no quota of its own: a successor would have nothing to take over.
    bool idle() const noexcept {
        return sessions_.empty() && arenas_.empty() && !devices_.changed() && !quotas_.changed();
    }

    /// Records go there from now on.
    void use_journal(JournalSink* journal) noexcept { journal_.use(journal); }

    /// True while the journal lacks something and no grants are made: rewrite it, then say so.
    bool journal_behind() const noexcept { return journal_.behind(); }
    /// This, or grants are refused by the disk: a rewrite shows when that is over.
    bool journal_failing() const noexcept { return journal_.failing(); }
    void journal_fell_behind(const Error& why) noexcept { journal_.fall_behind(why); }
    void journal_rewritten();
    /// What a request is refused with meanwhile.
    Error journal_refusal() const noexcept { return journal_.refusal(); }
    /// To be answered well when the journal has been rewritten: what was given back is not written
    /// down yet, and a daemon that is killed before it is would find it held.
    void answer_when_written(Ticket to, fabricshm::proto::Type type) {
        unwritten_.push_back({to, type, Error{Errc::kOk, 0, ""}, {}});
    }

    // ---- Sessions (registry_sessions.cpp) ----------------------------------------------------

    /// `device`: what the process computes on, whose quota its regions count against; "": nothing
    /// that has one. kNotFound for a device that is not configured.
    Result<SessionId> open_session(const Peer& peer, const std::string& label, const Token& token,
                                   TimePoint now, const std::string& device = "");

    /// A process that lost its connection, or whose daemon was restarted, is back. kNotFound for an
    /// unknown session, kDenied when the process or the token is not that session's.
    Result<void> resume_session(SessionId session, const Peer& peer, const Token& token);

    /// The connection is gone but the process is not known to be: it has `grace` to come back.
    /// What it was waiting for is cancelled.
    void connection_lost(SessionId session, TimePoint now);

    /// The process ended, said goodbye, or did not come back. Frees or quarantines its regions and
    /// marks its ranks dead. Idempotent: a death may be seen twice.
    void end_session(SessionId session, const char* why);

    /// What the session said of itself when it came: empty for one that is not there.
    struct SessionNames {
        std::string label;
        std::string device;
    };
    SessionNames names_of(SessionId session) const;

    /// What the books say of a session that claims to be `rank` of a group. `member` is false for a
    /// claim that is not true.
    struct SessionAccount {
        bool member = false;
        Bytes owned = 0;   // of its regions, now
        Bytes denied = 0;  // asked for and refused, since the daemon started
    };
    SessionAccount account_of(SessionId session, ArenaId arena, GroupId group, int rank) const;

    /// Bit i: the session has the shard open that `told[i]` names. Up to the first that names none.
    std::uint32_t shards_open(SessionId session, const fabricshm::ShardReads* told) const;

    // ---- Arenas (registry_arenas.cpp) --------------------------------------------------------

    Result<void> open_arena(Ticket ticket, const fabricshm::proto::ArenaOpen& request);
    Result<void> adopt_arena(Ticket ticket, ArenaId arena, fabricshm::Fd presented);
    /// True: it is done. False: there are many regions, which are given back in pieces; answered
    /// when they are, and until then the arena is none of the session's any more.
    Result<bool> close_arena(Ticket ticket, ArenaId arena);

    void arena_made(ArenaId arena, Result<fabricshm::PoolPiece> piece);
    void arena_adopted(ArenaId arena, Result<fabricshm::PoolPiece> piece);

    // ---- Arenas that grow (registry_growth.cpp) -----------------------------------------------

    /// Before a request of `session` for a hole of `bytes`. True: the arena has none, but may have
    /// one when more of it is committed. That has begun, and `serve` is called when it is done,
    /// well or not: to serve the request, and not to ask this again. False: serve it now. `owned`
    /// bytes count against the quota of the session's device.
    bool park(SessionId session, ArenaId arena, Bytes bytes, bool owned,
              std::function<void()> serve);

    void arena_grown(ArenaId arena, Bytes to, const Result<void>& done);

    /// The answer to a request that was parked.
    template <typename Body>
    void answer(Ticket to, fabricshm::proto::Type type, const Result<Body>& outcome) {
        answers_.push_back({to, type, Error{Errc::kOk, 0, ""}, {}});
        if (outcome.ok()) answers_.back().body = outcome.value();
        if (outcome.ok()) return;
        answers_.back().error = outcome.error();
        answers_.back().reason = fabricshm::reason_of(outcome.error());
    }
    /// Likewise, for one that is answered later still unless it is refused.
    void refuse(Ticket to, fabricshm::proto::Type type, const Result<void>& outcome) {
        if (outcome.ok()) return;
        const Error error = outcome.error();
        answers_.push_back({to, type, error, {}, fabricshm::reason_of(error)});
    }

    /// The descriptor that a kArenaOpen answer carries; -1 when the arena is not here.
    int descriptor(ArenaId arena) const;

    // ---- Regions and tensors (registry_regions.cpp) ------------------------------------------

    Result<fabricshm::proto::Region> create_region(SessionId session,
                                                   const fabricshm::proto::Region& request);
    Result<fabricshm::proto::Region> open_region(SessionId session,
                                                 const fabricshm::proto::Region& request) const;
    Result<void> free_region(SessionId session, ArenaId arena, RegionId region);
    Result<fabricshm::proto::Tensor> create_tensor(SessionId session,
                                                   const fabricshm::proto::Tensor& request);
    Result<void> open_tensor(Ticket ticket, const fabricshm::proto::Tensor& request, TimePoint now);

    // ---- Lost memory (registry_lost.cpp) ------------------------------------------------------

    /// A session met bytes that the hardware lost. They are taken out of circulation, all sessions
    /// of the arena are told, and the region they lie in (id 0: none) is returned.
    Result<fabricshm::proto::Region> note_lost(SessionId session,
                                               const fabricshm::proto::Region& request);

    // ---- Shards (registry_shards.cpp, registry_moves.cpp) -------------------------------------

    Result<fabricshm::proto::Shard> create_shard(SessionId session,
                                                 const fabricshm::proto::Shard& request);
    Result<void> open_shard(Ticket ticket, const fabricshm::proto::Shard& request, TimePoint now);
    Result<void> close_shard(SessionId session, const fabricshm::proto::Shard& request);
    Result<void> free_shard(SessionId session, const fabricshm::proto::Shard& request);

    /// Begins to move a shard of the session's own, at most `now`.
    Result<void> ask_move(SessionId session, const fabricshm::proto::Shard& request);

    /// Begins to move a shard: to another place of its arena ("here"), to another arena, so that it
    /// counts against another device, or onto the pages of a NUMA node. `done` hears how it ended,
    /// unless this fails: kNotFound, kInvalid (target), kBusy (it moves already), kNoMemory (no
    /// room or quota), kUnsupported (it can't).
    Result<void> move_shard(const MoveOrder& order, MoveDone done);

    /// From the thread that copies: the word that the header had when the copy was begun.
    void shard_copied(ShardId id, Result<fabricshm::ShardWord> seen);

    // ---- Quotas (registry_quotas.cpp) --------------------------------------------------------

    /// Changes the quota of a device or a user. It grows at once. It shrinks at once as far as new
    /// grants are concerned; the quota itself follows when what is used fits, or when the grace
    /// is over, and then it stays at what is used. kNotFound: no such device or user id; kInvalid:
    /// more than the device has.
    Result<QuotaState> set_quota(const QuotaOrder& order, TimePoint now);

    /// Shifts quota between devices, all of it in one go or nothing: their sum is never above what
    /// it was, and nothing is left to wait for. kNotFound, kInvalid: as above, or more than there
    /// is; kBusy: a quota is not what it was, or one who gives uses more than it is to keep.
    Result<void> shift_quotas(std::vector<QuotaShift> shifts, TimePoint now);

    /// What a session of that device and user may hold, for it to know. Its serial is 0.
    fabricshm::QuotaImage quotas_of(const std::string& device, std::uint32_t uid,
                                    TimePoint now) const;
    /// Rises whenever a limit or a target has changed.
    std::uint64_t quota_changes() const noexcept { return quota_changes_; }
    bool quotas_shrink() const noexcept;  // whether one does

    // ---- Groups (registry_groups.cpp) --------------------------------------------------------

    Result<void> join_group(Ticket ticket, const fabricshm::proto::Group& request, TimePoint now);
    Result<void> leave_group(SessionId session, const fabricshm::proto::Group& request);
    Result<void> shrink_group(Ticket ticket, const fabricshm::proto::Group& request, TimePoint now);

    // ---- Time and answers --------------------------------------------------------------------

    /// Everything whose time has come: waits, sessions that did not come back, arenas nobody
    /// claimed. Returns the sessions that this ended.
    std::vector<SessionId> expire(TimePoint now);
    /// When to call expire() next; TimePoint::max() when nothing is pending.
    TimePoint next_deadline() const;
    std::vector<Answer> take_answers() { return std::exchange(answers_, {}); }

    void set_draining(bool draining) noexcept { draining_ = draining; }
    bool draining() const noexcept { return draining_; }
    std::uint64_t daemon_epoch() const noexcept { return daemon_epoch_; }

    /// Sessions, arenas, regions and groups; the caller fills in the pool and the uptime.
    Snapshot snapshot(TimePoint now) const;
    /// The same in pieces of about `most` objects each: true when it is all there. What lives all
    /// the while is in it once; totals and devices are of the first piece.
    bool look_on(SnapshotWalk& walk, int most, TimePoint now) const;
    Places places(const std::vector<ShardId>& wanted, TimePoint now) const;  // that there are
    /// Who waits for whom, the longest wait first: of what sessions say (tamed, see
    /// wait_record.hpp) that for which the books confirm group and rank, and of groups that are
    /// forming.
    std::vector<WaitingView> waiting(const std::vector<fabricshm::SessionWait>& shown,
                                     TimePoint now) const;
    std::optional<ShardView> shard(const std::string& name) const;  // "ARENA/NAME"

    /// What can't be true of any books: two owners of one byte, miscounted sessions. Empty when all
    /// is well.
    std::vector<std::string> contradictions() const;
    /// These, and what a daemon that was not killed in the middle has none of; for tests.
    std::vector<std::string> problems() const;

  private:
    SnapshotTotals totals() const;
    bool walk_sessions(SnapshotWalk& walk, int& left, TimePoint now) const;
    bool walk_arenas(SnapshotWalk& walk, int& left) const;
    bool walk_regions(SnapshotWalk& walk, int& left) const;
    bool walk_groups(SnapshotWalk& walk, int& left) const;
    bool walk_shards(SnapshotWalk& walk, int& left) const;
    struct Session {
        SessionId id = SessionId::kNone;
        Token token{};
        Peer peer;
        std::string label;
        std::string device;
        TimePoint since;
        bool connected = false;
        bool ending = false;   // it has begun, and goes on in pieces
        TimePoint lost_until;  // when not connected
        std::set<ArenaId> arenas;
        int regions = 0;
        Bytes bytes_owned = 0;
        Bytes bytes_denied = 0;
    };

    /// What the end of an arena means to others.
    struct LeftBehind {
        std::vector<ShardId> lost_a_copy;  // shards of other arenas that had a copy in it
        std::vector<ArenaId> hosts;        // arenas that had a copy of its shards
    };

    // A reader that still has an old copy gives no sign when it is done, so the daemon looks: soon
    // at first, since reads are short, then ever less often.
    static constexpr Duration kMinShardPause = std::chrono::milliseconds(1);
    static constexpr Duration kMaxShardPause = std::chrono::milliseconds(128);

    int slice_left_;  // of Limits::freed_at_once, in this turn

    std::uint64_t next_id() noexcept { return ++last_id_; }
    Session* find_session(SessionId session);
    Arena* find_arena(ArenaId arena);
    Result<Arena*> arena_of(SessionId session, ArenaId arena);

    void begin_end(Session& session);
    int end_some(SessionId id, int most);
    void settle_endings(ArenaId of, const std::function<bool()>& enough);
    bool is_ending(SessionId id) const;
    bool is_being_left(const Arena& arena) const;
    void free_in_turn();
    Result<void> resume_allowed(const Session& session, const Peer& peer, const Token& token) const;

    Result<void> make_arena(Ticket ticket, const fabricshm::proto::ArenaOpen& request);
    Result<void> check_open(const Session& session, const Arena& arena,
                            const fabricshm::proto::ArenaOpen& request) const;
    Result<void> enter_arena(Session& session, Arena& arena);
    Result<void> settle(Arena& arena, fabricshm::PoolPiece piece);
    Result<void> add_links(Arena& arena);
    Result<void> write_new(const Arena& arena);
    std::optional<Bytes> growth_for(const Arena& arena, Bytes bytes) const;
    Error no_room(const char* step, const Arena& arena, Bytes bytes) const;
    bool park(Arena& arena, Bytes bytes, std::function<void()> serve);
    Result<void> extend(Arena& arena, Bytes to);
    void answer_waiting(Arena& arena, const Error& error);
    void leave_arena(Session& session, Arena& arena);
    void begin_leaving(Session& session, Arena& arena);
    void finish_leaving(Session& session, Arena& arena);
    int leave_some(SessionId session, ArenaId arena, int most);
    bool is_leaving(SessionId session, ArenaId arena) const;
    void forget_closers(SessionId session);
    void answer_closer(SessionId session, ArenaId arena);
    void drop_if_unused(ArenaId arena);
    void drop_arena(ArenaId arena, const char* why);
    std::vector<Wait> take_openers(const Arena& arena);
    void open_again(const Wait& wait, const std::string& name);
    void remove_arena(ArenaId arena);
    void abandon_arena(ArenaId arena);
    void give_up_on_away();

    Result<RegionId> make_region(Session& session, Arena& arena, Bytes bytes,
                                 std::optional<TensorInfo> tensor,
                                 std::optional<ShardId> shard = std::nullopt);
    static SessionRecord record_of(const Session& session);
    static ArenaRecord record_of(const Arena& arena);
    static Result<void> record_group(const Group& group, JournalSink& sink);
    static Result<void> record_region(const Arena& arena, RegionId region, JournalSink& sink);
    void undo_region(Session& session, Arena& arena, RegionId region);
    void count_region(Session& session, const Region& region, int change);
    void release_region(Arena& arena, RegionId region);
    void quarantine_region(Arena& arena, RegionId region);
    void forget_tensor(Arena& arena, RegionId region);
    int reclaim_some(Session& session, Arena& arena, int most);
    void reclaim_region(Session& session, Arena& arena, RegionId region);
    void clear_way(SessionId session, const Arena& arena, Bytes bytes);
    void give_up_name(Arena& arena, const std::string& name);
    void sweep_quarantine(Arena& arena, const std::vector<SessionId>& members);
    int free_some(Arena& arena, int most);
    void answer_tensor(Arena& arena, RegionId region);

    fabricshm::proto::Region lost_region(const Arena& arena, std::uint64_t offset,
                                         Bytes bytes) const;
    void lose(Arena& arena, std::uint64_t offset, Bytes bytes);
    static void take_lost(Arena& arena, std::uint64_t offset, Bytes bytes);
    static void release_space(Arena& arena, std::uint64_t offset, Bytes bytes);
    Result<RegionId> make_copy(Session& owner, Arena& arena, Bytes bytes, std::string device,
                               ShardId shard);
    Result<Shard*> place_shard(Session& owner, Arena& arena, const TensorInfo& info, Bytes bytes);
    Result<void> format_shard(const Shard& shard);
    Shard* find_shard(ShardId id);
    std::optional<ShardId> shard_named(const std::string& name) const;
    Result<Shard*> shard_of(SessionId session, const fabricshm::proto::Shard& request);
    Result<fabricshm::proto::Shard> open_now(Shard& shard, SessionId session);
    fabricshm::proto::Shard wire_shard(const Shard& shard, int slot) const;
    void answer_shard(Shard& shard);
    Result<ArenaSpan> header_of(const Shard& shard) const;
    bool is_read(const Shard& shard, int place) const;
    bool is_endangered(const Shard& shard, ArenaId arena) const;
    ShardRecord record_of(const Shard& shard) const;
    Result<void> write_shard(const Shard& shard, JournalSink& sink) const;
    void drop_reader(Shard& shard, SessionId session);
    void release_copy(Shard& shard, int place);
    void drop_copy(Shard& shard, int place);
    void retire_shard(Shard& shard);
    void end_shard(Shard& shard);
    void leave_shards(SessionId session, ArenaId arena);
    void sweep_shard(ShardId id);
    void sweep_shards();
    LeftBehind forget_shards(ArenaId arena);
    void go_on_without(const LeftBehind& left);
    void settle_shards(const Arena& arena);
    void format_again(const Shard& shard);
    Result<void> restore_shards(const PoolImage& image);
    static Region* still_there(Arena* arena, RegionId id, std::uint64_t generation);
    Result<void> restore_shard(const ShardImage& image);
    Result<void> restore_readers(const ShardImage& image, const Arena& home, Shard& shard);
    Result<std::optional<ShardCopy>> restore_copy(const Shard& shard,
                                                  const ShardRecord::Copy& copy);
    Result<MoveTarget> parse_target(const Shard& shard, const std::string& text) const;
    bool has_node(int node) const;
    Result<int> node_of_device(const std::string& device) const;
    Result<void> check_move(const Shard& shard) const;
    Result<void> begin_move(Shard& shard, const MoveTarget& target, Bytes bytes_per_second,
                            MoveDone done);
    Result<void> grant_copy(Shard& shard, const MoveTarget& target, Bytes bytes_per_second,
                            MoveDone done);
    Result<void> start_copy(Shard& shard);
    void count_copying(const Shard& shard, int change);
    void end_move(Shard& shard, const Result<void>& outcome);
    ShardView view_shard(const Shard& shard) const;
    const Group* confirmed(const fabricshm::SessionWait& wait) const;
    LateRank late_rank(const Group& group, int rank) const;
    void add_forming(TimePoint now, std::vector<WaitingView>& rows) const;
    void settle_quotas(TimePoint now);
    Result<void> write_quotas(JournalSink& sink) const;
    Result<void> restore_quotas(const PoolImage& image, TimePoint now);
    void tell_of_loss(const Arena& arena, const fabricshm::proto::Region& news);
    void send_news(SessionId session, const fabricshm::proto::Region& news);
    void send_losses(SessionId session, const Arena& arena);
    bool is_bad(const Arena& arena, RegionId region) const;

    Result<void> check_name(const Arena& arena, const std::string& name) const;
    Result<void> check_forming(const WaitKey& key, const fabricshm::proto::Group& request) const;
    bool answer_again(const Arena& arena, Ticket ticket, const fabricshm::proto::Group& request);
    void form_group(Arena& arena, const std::string& name, const std::vector<WaitId>& by_rank,
                    GroupId shrunk_from);
    Result<Group*> make_group(Arena& arena, const std::string& name,
                              const std::vector<SessionId>& by_rank, GroupId shrunk_from);
    Result<std::uint64_t> place_block(Arena& arena, Bytes bytes,
                                      const fabricshm::GroupBlockInfo& info);
    void set_member(Arena& arena, Group& group, int rank, MemberState state);
    void mark_members_dead(SessionId session, Arena& arena);
    static const Group* successor_of(const Arena& arena, GroupId group);
    bool answer_shrink_again(const Group* successor, Ticket ticket);
    void check_shrink(Arena& arena, GroupId group);
    bool shrink_is_complete(const Arena& arena, GroupId group) const;
    void shrink_now(ArenaId arena, GroupId group);
    void reopen_shrink(Arena& arena, const Group& gone);
    void after_member_change(Arena& arena, GroupId group);
    void finish_members(Arena& arena);
    std::pair<Arena*, Group*> find_group(SessionId session, const fabricshm::proto::Group& request);

    Bytes room_of(const std::string& device) const;
    Result<void> add_wait(Wait wait);
    void cancel_waits(SessionId session, ArenaId arena, bool answer);
    void fail_wait(WaitId id, const Error& error);
    void expire_wait(WaitId id);

    void forget_recovery();
    Result<void> restore_sessions(const PoolImage& image, TimePoint now);
    Result<void> restore_arena(const ArenaImage& image);
    Result<void> restore_regions(const ArenaImage& image, Arena& arena);
    Result<void> restore_groups(const ArenaImage& image, Arena& arena);
    Result<void> write_arena(const Arena& arena, JournalSink& sink) const;

    Limits limits_;
    JournalGuard journal_;
    ArenaMemory* memory_;
    PoolWork* work_;
    const fabricshm::LinkImage* links_;
    CopyWork* copies_;
    const bool commits_whole_;
    QuotaTable quotas_;
    DeviceTable devices_;
    std::uint64_t quota_changes_ = 0;
    Error growth_failure_{Errc::kOk, 0, ""};  // while what waited for the growth is served

    std::map<SessionId, Session> sessions_;
    std::map<ArenaId, Arena> arenas_;
    std::map<std::string, ArenaId> arena_names_;
    std::set<std::pair<TimePoint, SessionId>> lost_;  // not connected, by when to give up
    std::set<SessionId> ending_;                      // whose end goes on in the next turn
    // Arenas that live sessions are leaving in pieces, and whom to answer then: nothing when its
    // connection is gone.
    std::map<std::pair<SessionId, ArenaId>, std::optional<Ticket>> leaving_;
    std::set<ArenaId> freeing_;  // that have something in Arena::freeing
    std::map<ShardId, Shard> shards_;
    std::set<ShardId> loose_shards_;  // retired, or with two copies: something may be free soon
    TimePoint shards_due_ = TimePoint::max();  // when to look again whether old copies are read
    Duration shards_pause_ = kMinShardPause;
    bool shards_asked_ = false;  // some old copy is still read: look again
    WaitList waits_;
    std::vector<Answer> answers_;
    std::vector<Answer> unwritten_;  // see answer_when_written()

    std::uint64_t daemon_epoch_ = 1;
    std::uint64_t last_id_ = 0;
    Duration grace_ = std::chrono::seconds(10);
    TimePoint away_until_ = TimePoint::max();
    bool gave_up_on_away_ = false;  // the grace after a restart is over
    bool draining_ = false;
};

}  // namespace fabricd

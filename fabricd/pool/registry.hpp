// Registry: everything the daemon is asked of sessions, arenas, regions, tensors, shards and
// groups. A state machine without threads, clocks or sockets: the server reports what happened and
// when, it says what to answer. It holds the data and the classes with the rules about it, one per
// noun; what it adds is the order of things. docs/failure_model.md has the rules in prose.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/arenas.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/pool/cached_grants.hpp"
#include "fabricd/pool/commits.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/elastic.hpp"
#include "fabricd/pool/groups.hpp"
#include "fabricd/pool/growth.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/losses.hpp"
#include "fabricd/pool/moves.hpp"
#include "fabricd/pool/pin_requests.hpp"
#include "fabricd/pool/pool_work.hpp"
#include "fabricd/pool/publications.hpp"
#include "fabricd/pool/quotas.hpp"
#include "fabricd/pool/regions.hpp"
#include "fabricd/pool/room_waits.hpp"
#include "fabricd/pool/sessions.hpp"
#include "fabricd/pool/shards.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/pool/snapshot_walk.hpp"
#include "fabricd/pool/view.hpp"
#include "libfabricshm/shm/directive_page.hpp"

namespace fabricd {

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
        bool is_local = false;                        // PoolBackend::is_local()
        // Other hosts share the pool, and nothing keeps their caches coherent with this one's.
        bool caches_apart = false;
        std::string unpublished = "";  // why no arena is published; "": they are
    };

    Registry(const Limits& limits, const Parts& parts);

    // ---- Start -------------------------------------------------------------------------------

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
        return books_.sessions.empty() && books_.arenas.empty() && !books_.devices.changed() &&
               !books_.users.changed();
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

    // ---- Sessions ----------------------------------------------------------------------------

    /// `device`: what the process computes on, whose quota its regions count against; "": nothing
    /// that has one. kNotFound for a device that is not configured.
    Result<SessionId> open_session(const Peer& peer, const std::string& label, const Token& token,
                                   TimePoint now, const std::string& device = "");

    /// A process that lost its connection, or whose daemon was restarted, is back. kNotFound for an
    /// unknown session, kDenied when the process or the token is not that session's. One that was
    /// given up is unknown but for kToLeave, after which end_session() has to follow at once.
    Result<void> resume_session(SessionId session, const Peer& peer, const Token& token,
                                ComeBack purpose = ComeBack::kToGoOn);

    /// The connection is gone but the process is not known to be: it has `grace` to come back.
    /// What it was waiting for is cancelled.
    void connection_lost(SessionId session, TimePoint now);

    /// The process ended, said goodbye, or did not come back. Frees or quarantines its regions and
    /// marks its ranks dead. Idempotent: a death may be seen twice.
    /// kGivenUp is for a session of another host that is silent, or whose host is: the others go on
    /// without its ranks, and what it holds is granted to none until this is called again, and says
    /// that it writes no more. It can't come back. kLeftInCaches is the same for one whose process
    /// has ended, while its host writes out what it stored.
    void end_session(SessionId session, const char* why, SessionEnd how = SessionEnd::kEnded);

    /// Those of other hosts, with what is known of their processes.
    std::vector<RemoteSession> remote_sessions() const;
    bool has_remote_sessions() const noexcept { return !books_.remote.empty(); }

    SessionNames names_of(SessionId session) const { return fabricd::names_of(books_, session); }
    SessionAccount account_of(SessionId session, ArenaId arena, GroupId group, int rank) const {
        return fabricd::account_of(books_, session, arena, group, rank);
    }

    /// Bit i: the session has the shard open that `claims[i]` names. Up to the first that names
    /// none.
    std::uint32_t shards_open(SessionId session, const fabricshm::ShardReads* claims) const;

    // ---- Arenas ------------------------------------------------------------------------------

    Result<void> open_arena(Ticket ticket, const fabricshm::proto::ArenaOpen& request);
    Result<void> adopt_arena(Ticket ticket, ArenaId arena, fabricshm::PresentedFiles presented);
    /// True: it is done. False: there are many regions, which are given back in pieces; answered
    /// when they are, and until then the arena is none of the session's any more.
    Result<bool> close_arena(Ticket ticket, ArenaId arena);

    void arena_made(ArenaId arena, Result<fabricshm::PoolPiece> piece);
    void arena_adopted(ArenaId arena, Result<fabricshm::PoolPiece> piece);

    // ---- Arenas that grow, and room that is given back ----------------------------------------

    /// Before a request of `session` for a hole of `bytes`. True: the arena has none, but may have
    /// one when more of it is committed, or when what ended has given back what it held. `serve` is
    /// called when that is so, well or not: to serve the request, and not to ask this again. False:
    /// serve it now. `owned` bytes count against the quota of the session's device.
    bool park(SessionId session, ArenaId arena, Bytes bytes, bool owned,
              const std::function<void()>& serve);

    /// Of a growth, or of pages that went back: the end of the oldest that is under way.
    void arena_grown(ArenaId arena, Bytes to, const Result<void>& done);

    /// The answer to a request that was parked.
    template <typename Body>
    void answer(Ticket to, fabricshm::proto::Type type, const Result<Body>& outcome) {
        Effects out;
        if (outcome.ok()) {
            out.answers.push_back({to, type, Error{Errc::kOk, 0, ""}, outcome.value()});
        } else {
            out.answers.push_back(refusal_to(to, type, outcome.error()));
        }
        carry_out(std::move(out));
    }
    /// Likewise, for one that is answered later still unless it is refused.
    void refuse(Ticket to, fabricshm::proto::Type type, const Result<void>& outcome) {
        if (outcome.ok()) return;
        Effects out;
        out.answers.push_back(refusal_to(to, type, outcome.error()));
        carry_out(std::move(out));
    }

    /// The descriptors that a kArenaOpen answer to the session carries: one, or of each of the
    /// pool's devices. None when the arena is not here.
    std::vector<int> descriptors(ArenaId arena, SessionId session = SessionId::kNone) const;

    // ---- Regions and tensors -----------------------------------------------------------------

    Result<fabricshm::proto::Region> create_region(SessionId session,
                                                   const fabricshm::proto::Region& request);
    Result<fabricshm::proto::Region> open_region(SessionId session,
                                                 const fabricshm::proto::Region& request) const;
    Result<void> free_region(SessionId session, ArenaId arena, RegionId region,
                             std::uint64_t generation = 0);
    bool has_tensor(ArenaId arena, const std::string& name) const;
    Result<fabricshm::proto::Tensor> create_tensor(SessionId session,
                                                   const fabricshm::proto::Tensor& request);
    Result<void> open_tensor(Ticket ticket, const fabricshm::proto::Tensor& request, TimePoint now);

    CachedGrants& cached_grants() noexcept { return cached_grants_; }

    // ---- Lost memory --------------------------------------------------------------------------

    /// A session met bytes that the hardware lost. They are taken out of circulation, all sessions
    /// of the arena are notified, and the region they lie in (id 0: none) is returned.
    Result<fabricshm::proto::Region> note_lost(SessionId session,
                                               const fabricshm::proto::Region& request);

    // ---- Shards -------------------------------------------------------------------------------

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

    // ---- Quotas ------------------------------------------------------------------------------

    /// Changes the quota of a device or a user. It grows at once. It shrinks at once as far as new
    /// grants are concerned; the quota itself follows when what is used fits, or when the grace
    /// is over, and then it stays at what is used. kNotFound: no such device or user id; kInvalid:
    /// more than the device has.
    Result<QuotaState> set_quota(const QuotaOrder& order, TimePoint now);

    /// Shifts quota between devices, all of it in one go or nothing: their sum is never above what
    /// it was, and nothing is left to wait for. kNotFound, kInvalid: as above, or more than there
    /// is; kBusy: a quota is not what it was, or one that gives uses more than it is to keep.
    /// Of "cache:ARENA" what caches may have: see Elastic.
    Result<void> shift_quotas(std::vector<QuotaShift> shifts, TimePoint now);

    /// What a session of that device and user may hold, for it to know. Its serial is 0.
    fabricshm::QuotaImage quotas_of(const std::string& device, std::uint32_t uid,
                                    TimePoint now) const;
    const Quotas& quotas() const noexcept { return quotas_; }  // whether one changes

    // ---- Groups ------------------------------------------------------------------------------

    Result<void> join_group(Ticket ticket, const fabricshm::proto::Group& request, TimePoint now);
    Result<void> leave_group(SessionId session, const fabricshm::proto::Group& request);
    Result<void> shrink_group(Ticket ticket, const fabricshm::proto::Group& request, TimePoint now);

    // ---- Time and answers --------------------------------------------------------------------

    /// Everything whose time has come: waits, sessions that did not come back, arenas never
    /// claimed. Returns the sessions that this ended.
    std::vector<SessionId> expire(TimePoint now);
    /// When to call expire() next; TimePoint::max() when nothing is pending.
    TimePoint next_deadline() const;
    std::vector<Answer> take_answers() { return std::exchange(answers_, {}); }

    void set_draining(bool draining) noexcept { books_.draining = draining; }
    std::uint64_t daemon_epoch() const noexcept { return books_.daemon_epoch; }

    /// Sessions, arenas, regions and groups; the caller fills in the pool and the uptime.
    Snapshot snapshot(TimePoint now) const {
        Snapshot all = fabricd::snapshot(books_, now);
        elastic.add_to(all);
        return all;
    }
    /// The same in pieces of about `most` objects each: true when it is all there. What lives all
    /// the while is in it once; totals and devices are of the first piece.
    bool look_on(SnapshotWalk& walk, int most, TimePoint now) const {
        if (walk.stage == SnapshotWalk::Stage::kBegin) elastic.add_to(walk.all);
        return fabricd::look_on(books_, walk, most, now);
    }
    Places places(const std::vector<ShardId>& wanted, TimePoint now) const {  // that there are
        Places all = fabricd::places(books_, wanted, now);
        elastic.add_to(all);
        return all;
    }
    /// Which ranks wait for which, the longest wait first: of what sessions say (tamed, see
    /// wait_record.hpp) that for which the registry confirms group and rank, and of groups that are
    /// forming.
    std::vector<WaitingView> waiting(const std::vector<fabricshm::SessionWait>& shown,
                                     TimePoint now) const {
        return fabricd::waiting(books_, shown, now);
    }
    std::optional<ShardView> shard(const std::string& name) const;  // "ARENA/NAME"

    /// See books.hpp.
    std::vector<std::string> contradictions() const { return books_.contradictions(); }
    std::vector<std::string> problems() const { return books_.problems(); }

  private:
    /// Does one thing, and then what follows from it.
    template <typename Operation>
    auto act(Operation operation) {
        Effects out;
        if constexpr (std::is_void_v<std::invoke_result_t<Operation, Effects&>>) {
            operation(out);
            carry_out(std::move(out));
        } else {
            auto result = operation(out);
            carry_out(std::move(out));
            return result;
        }
    }
    void carry_out(Effects out);
    void open_again(const Reopening& again, Effects& out);
    void free_in_turn(Effects& out);

    Books books_;
    CachedGrants cached_grants_{books_};
    JournalGuard journal_;
    // The rules, each on top of those before it: none knows one that comes later.
    Growth growth_;
    Losses losses_;
    Regions regions_;
    Shards shards_;
    Moves moves_;
    Groups groups_;
    Publications publications_;
    Arenas arenas_;
    Sessions sessions_;
    Quotas quotas_;
    RoomWaits room_waits_;

    int slice_left_;  // of Limits::freed_at_once, in this turn
    std::vector<Answer> answers_;
    std::vector<Answer> unwritten_;  // see answer_when_written()

  public:
    /// What concerns published arenas, and those that give memory back.
    PinRequests pins;
    Elastic elastic;
    /// Requests for all of an arena.
    Commits commits;
};

}  // namespace fabricd

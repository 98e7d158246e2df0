// Arenas: how they are made, opened, presented again after a restart, left and dropped.

#pragma once

#include <string>
#include <vector>

#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/groups.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/losses.hpp"
#include "fabricd/pool/pool_work.hpp"
#include "fabricd/pool/publications.hpp"
#include "fabricd/pool/regions.hpp"
#include "fabricd/pool/shards.hpp"

namespace fabricd {

/// Used by the control thread only.
class Arenas {
  public:
    struct Needs {
        Books& books;
        JournalGuard& journal;
        ArenaMemory& memory;
        PoolWork& work;
        Regions& regions;
        Shards& shards;
        Groups& groups;
        Publications& publications;
        const fabricshm::LinkImage* links;  // of the emulated machine; nullptr: none
        bool commits_whole;                 // PoolBackend::commits_whole()
        bool is_local;                      // PoolBackend::is_local()
    };

    explicit Arenas(const Needs& needs)
        : books_(needs.books),
          journal_(needs.journal),
          memory_(needs.memory),
          work_(needs.work),
          regions_(needs.regions),
          shards_(needs.shards),
          groups_(needs.groups),
          publications_(needs.publications),
          links_(needs.links),
          commits_whole_(needs.commits_whole),
          is_local_(needs.is_local) {}

    // ---- Requests, and what other threads did for them ---------------------------------------

    Result<void> open(Ticket ticket, const fabricshm::proto::ArenaOpen& request, Effects& out);
    void made(ArenaId arena, Result<fabricshm::PoolPiece> piece, Effects& out);

    Result<void> adopt(Ticket ticket, ArenaId arena, fabricshm::PresentedFiles presented,
                       Effects& out);
    void adopted(ArenaId arena, Result<fabricshm::PoolPiece> piece, Effects& out);

    /// See Registry::close_arena(). At most `slice` regions are given back now; it is left what is
    /// left of that.
    Result<bool> close(Ticket ticket, ArenaId arena, int& slice, Effects& out);
    /// The connection that they were asked on is gone; what was begun goes on.
    void forget_closers(SessionId session);

    // ---- Leaving -----------------------------------------------------------------------------

    /// All that follows for others, which see it at once; then the regions are given back, and then
    /// the session has left.
    void begin_leaving(Session& session, Arena& arena, Effects& out);
    void finish_leaving(Session& session, Arena& arena, Effects& out);
    /// Of the first, what a session on a silent host brings about; see Groups::give_up().
    void give_up(Session& session, Arena& arena, Effects& out);
    /// Goes on with that. Returns how many of `most` are left; the arena has been left then.
    int leave_some(SessionId session, ArenaId arena, int most, Effects& out);

    /// Ends the arena unless there is a reason to keep it. Does nothing when it has ended.
    void drop_if_unused(ArenaId arena, Effects& out);

    // ---- After a restart ---------------------------------------------------------------------

    /// How long arenas wait to be presented; TimePoint::max() when none does.
    TimePoint away_until() const noexcept { return away_until_; }
    void wait_until(TimePoint deadline) noexcept { away_until_ = deadline; }
    void give_up_on_away(Effects& out);

    /// kCorrupt when the journal contradicts itself.
    Result<void> restore(const ArenaImage& image);
    /// Once all of them are restored: their bytes count as used of the pool.
    void expect_all();
    Result<void> write(const Arena& arena, JournalSink& sink) const;

  private:
    static Result<void> compare(const Arena& arena, const fabricshm::PresentedFiles& presented);
    static Result<void> compare_others(const Arena& arena,
                                       const std::vector<fabricshm::Fd>& others);
    Result<void> make(Ticket ticket, const fabricshm::proto::ArenaOpen& request);
    Result<void> check_open(const Session& session, const Arena& arena,
                            const fabricshm::proto::ArenaOpen& request) const;
    Result<void> enter(Session& session, Arena& arena, const Wait& wait);
    Result<void> settle(Arena& arena, fabricshm::PoolPiece piece);
    Result<void> add_links(Arena& arena);
    Result<void> write_new(const Arena& arena);
    void answer_waiting(Arena& arena, const Error& error, Effects& out);
    void answer_closer(SessionId session, ArenaId arena, Effects& out);
    void leave(Session& session, Arena& arena, Effects& out);
    void drop(ArenaId arena, const char* why, Effects& out);
    std::vector<Wait> take_openers(const Arena& arena);
    void remove(ArenaId arena);
    void abandon(ArenaId arena, Effects& out);

    Books& books_;
    JournalGuard& journal_;
    ArenaMemory& memory_;
    PoolWork& work_;
    Regions& regions_;
    Shards& shards_;
    Groups& groups_;
    Publications& publications_;
    const fabricshm::LinkImage* links_;
    const bool commits_whole_;
    const bool is_local_;
    TimePoint away_until_ = TimePoint::max();
    bool gave_up_on_away_ = false;  // the grace after a restart is over
};

}  // namespace fabricd

// RoomWaits: requests that found too little of something while sessions end or arenas are left.
// What those hold is given back in pieces, a few milliseconds of it per turn, and the requests are
// tried again after each piece: so no request makes its turn longer, whatever is being given back.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>

#include "fabricd/pool/arenas.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/pool_work.hpp"
#include "fabricd/pool/regions.hpp"

namespace fabricd {

/// A request that has waited is served at the latest when all that was given back when it came has
/// been, then well or not. Of one session as many wait as may (Limits::max_waits_per_session).
/// Used by the control thread only.
class RoomWaits {
  public:
    struct Needs {
        Books& books;
        const Regions& regions;
        Arenas& arenas;
        PoolWork& work;
    };
    explicit RoomWaits(const Needs& needs)
        : books_(needs.books), regions_(needs.regions), arenas_(needs.arenas), work_(needs.work) {}

    /// Before a request for a hole of `bytes`. True: there is none, or the quota of the session's
    /// device is used up (of `owned` bytes), and `serve` is called later. False: serve it now.
    bool wait_for_hole(SessionId session, ArenaId arena, Bytes bytes, bool owned,
                       const std::function<void()>& serve);

    /// Arenas::open(), for which there may be too many arenas, or too many bytes of its user.
    Result<void> open(Ticket ticket, const fabricshm::proto::ArenaOpen& request, Effects& out);

    /// What the pool's work on a new arena came to. True: the pool had not enough, and the arena is
    /// made again when that may have changed. Once: what it has not then is missing.
    bool makes_again(ArenaId arena, const Result<fabricshm::PoolPiece>& piece);

    /// Once in each turn, after its piece. At most kAttempts, each some microseconds: those that
    /// wait on go behind the others.
    void serve_some(Effects& out);

    bool empty() const noexcept { return waiting_.empty(); }

    static constexpr int kAttempts = 64;

  private:
    /// Serves the request if there is enough now, or if it is the `last` time. False: it waits on.
    using Attempt = std::function<bool(bool last, Effects& out)>;
    struct Waiting {
        SessionId session;
        std::uint64_t last_id;  // given out until then
        Attempt attempt;
    };
    bool park(SessionId session, Attempt attempt);
    bool gives_back(std::uint64_t last_id) const;
    bool has_hole(SessionId session, ArenaId arena, Bytes bytes, bool owned) const;

    Books& books_;
    const Regions& regions_;
    Arenas& arenas_;
    PoolWork& work_;
    std::deque<Waiting> waiting_;
    std::map<SessionId, int> counts_;  // no zeros
    std::set<ArenaId> made_again_;     // in the making
};

}  // namespace fabricd

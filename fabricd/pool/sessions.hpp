// Sessions: how they begin, lose their connection, come back and end.

#pragma once

#include <string>

#include "fabricd/pool/arenas.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/regions.hpp"

namespace fabricd {

/// Used by the control thread only.
class Sessions {
  public:
    Sessions(Books& books, JournalGuard& journal, Regions& regions, Arenas& arenas)
        : books_(books), journal_(journal), regions_(regions), arenas_(arenas) {}

    /// See Registry::open_session(), resume_session() and connection_lost().
    Result<SessionId> open(const Peer& peer, const std::string& label, const Token& token,
                           TimePoint now, const std::string& device);
    Result<void> resume(SessionId session, const Peer& peer, const Token& token, ComeBack purpose);
    void connection_lost(SessionId session, TimePoint now);

    /// See SessionEnd::kGivenUp of Registry::end_session().
    void give_up(SessionId session, const char* why, SessionEnd how, Effects& out);

    /// Begins its end, and gives back at most `slice` of its regions, which is left what is left of
    /// that. Idempotent.
    void end(SessionId session, const char* why, int& slice, Effects& out);
    /// There can be tens of thousands of regions: gives back `most` of them, then others are
    /// served. Returns how many of `most` are left; the session is gone then.
    int end_some(SessionId session, int most, Effects& out);

    // ---- The journal -------------------------------------------------------------------------

    static Result<void> write(const Session& session, JournalSink& sink);
    /// kCorrupt when the journal contradicts itself.
    Result<void> restore(const PoolImage& image, TimePoint now);

  private:
    void begin_end(Session& session, Effects& out);

    Books& books_;
    JournalGuard& journal_;
    Regions& regions_;
    Arenas& arenas_;
};

}  // namespace fabricd

// Commits: requests to commit all pages of an arena. A process that pins an arena needs them all,
// and takes no region for it: what others are granted meanwhile is none of its business.

#pragma once

#include <functional>
#include <map>
#include <utility>

#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/pool_work.hpp"

namespace fabricd {

/// All that wait for an arena wait for the same growth, which goes on in pieces: between two of
/// them what other requests need is committed first. What is committed counts as what is granted
/// does (Growth), and stays so. Used by the control thread only.
class Commits {
  public:
    /// `carry_out` does what follows from a request.
    Commits(Books& books, JournalGuard& journal, PoolWork& work,
            std::function<void(Effects)> carry_out)
        : books_(books), journal_(journal), work_(work), carry_out_(std::move(carry_out)) {}
    Commits(const Commits&) = delete;
    Commits& operator=(const Commits&) = delete;

    /// Answered when all of the arena is committed. kNoMemory when pool or quota do not allow all
    /// of it, with what is in the way: what they allow is committed then. kUnsupported: it is
    /// published, and its size is for the daemon to say. kBusy: it has not been presented yet.
    Result<void> ask(Ticket ticket, ArenaId arena);

    /// A growth has ended, and what needed its bytes is served. `own`: it was one of these, which
    /// was to reach `to` and came to `done`.
    void go_on(Arena& arena, bool own, Bytes to, const Result<void>& done, Effects& out);

  private:
    Result<void> wait_for_all(Ticket ticket, Arena& arena);
    Result<void> begin(Arena& arena);
    Error refusal(const Arena& arena, const Error& why) const;
    void answer(const Arena& arena, const Error& outcome, Effects& out);

    Books& books_;
    JournalGuard& journal_;
    PoolWork& work_;
    const std::function<void(Effects)> carry_out_;
    // Of arenas that requests wait for: how much is tried next. 0: pool or quota have refused the
    // smallest piece.
    std::map<ArenaId, Bytes> pieces_;
};

}  // namespace fabricd

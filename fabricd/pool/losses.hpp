// Losses: memory that the hardware lost. Whose it was, which sessions hear of it, and that it is
// never granted again.

#pragma once

#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/journal_guard.hpp"

namespace fabricd {

/// Used by the control thread only.
class Losses {
  public:
    Losses(Books& books, JournalGuard& journal) : books_(books), journal_(journal) {}

    /// What a session met; see Registry::note_lost().
    Result<fabricshm::proto::Region> note(SessionId session,
                                          const fabricshm::proto::Region& request, Effects& out);
    /// What the daemon met itself, in bytes that are free.
    void lose(Arena& arena, std::uint64_t offset, Bytes bytes, Effects& out);

    /// Notifies a session that opens or presents the arena of all that it lost before.
    static void tell(SessionId session, const Arena& arena, Effects& out);

  private:
    void take(Arena& arena, std::uint64_t offset, Bytes bytes);

    Books& books_;
    JournalGuard& journal_;
};

/// Takes lost bytes out of circulation: those that are free at once, those that are held when
/// they come back.
void take_lost(Arena& arena, std::uint64_t offset, Bytes bytes);

/// Gives bytes back to the arena, but for those that are lost.
void release_space(Arena& arena, std::uint64_t offset, Bytes bytes);

bool is_bad(const Arena& arena, RegionId region);

}  // namespace fabricd

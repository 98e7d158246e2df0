// Growth: arenas that grow. What is granted is committed first, by another thread, while the
// request for it waits. docs/adr/0018-arenas-grow.md.

#pragma once

#include <optional>

#include "fabricd/pool/books.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/pool_work.hpp"

namespace fabricd {

/// Used by the control thread only.
class Growth {
  public:
    Growth(Books& books, JournalGuard& journal, PoolWork& work)
        : books_(books), journal_(journal), work_(work) {}

    /// Before a request for a hole of `bytes`. True: the arena has none, but may have one when more
    /// of it is committed. That has begun, and `serve` is to be called when it is done, well or
    /// not. False: serve it now.
    bool park(Arena& arena, Bytes bytes, Serve serve);
    /// Whether park() may have something to do for a request; nullptr: serve it now, also because
    /// it is refused in any case. `owned` bytes count against the quota of the session's device.
    Arena* arena_to_grow(SessionId session, ArenaId arena, Bytes bytes, bool owned);

    /// Enters what a growth came to. Its requests (Arena::parked) are the caller's to
    /// serve, and then settled() to be called.
    Result<void> finish(Arena& arena, Bytes to, const Result<void>& done);
    /// What the largest of its parked requests needs committed, if the growth is theirs; else 0.
    Bytes need_of(const Arena& arena) const;
    void settled() noexcept { failure_ = Error{Errc::kOk, 0, ""}; }

    /// What a request is refused with for which there is no hole.
    Error no_room(const char* step, const Arena& arena, Bytes bytes) const;

  private:
    std::optional<Bytes> needed(const Arena& arena, Bytes bytes) const;
    Result<void> extend(Arena& arena, Bytes to);

    Books& books_;
    JournalGuard& journal_;
    PoolWork& work_;
    Error failure_{Errc::kOk, 0, ""};  // while what waited for the growth is served
};

}  // namespace fabricd

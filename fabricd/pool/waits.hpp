// Waits: how requests that are answered later begin to wait, and end without what they waited for.

#pragma once

#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"

namespace fabricd {

/// kNoMemory when the session has as many as it may have.
Result<void> add_wait(Books& books, Wait wait);

/// Answers it with the error. Does nothing when it has ended already.
void fail_wait(Books& books, WaitId id, const Error& error, Effects& out);

/// Of a session whose connection is gone: without an answer.
void drop_waits(Books& books, SessionId session);

/// For what the session wants of the arena that it leaves: kClosed.
void close_waits(Books& books, SessionId session, ArenaId arena, Effects& out);

/// All whose deadline is not after `now`: kTimeout.
void expire_waits(Books& books, TimePoint now, Effects& out);

}  // namespace fabricd

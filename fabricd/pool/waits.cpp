#include "fabricd/pool/waits.hpp"

#include "fabricd/pool/refusals.hpp"

namespace fabricd {

Result<void> add_wait(Books& books, Wait wait) {
    const int most = books.limits.max_waits_per_session;
    if (books.waits.count_of(wait.ticket.session) >= static_cast<std::size_t>(most)) {
        return refuse_count("waits of the session", "this session", "requests that wait", most, "");
    }
    books.waits.add(std::move(wait));
    return {};
}

void fail_wait(Books& books, WaitId id, const Error& error, Effects& out) {
    const auto wait = books.waits.take(id);
    if (wait) out.answers.push_back(refusal_to(wait->ticket, wait->asked, error));
}

void drop_waits(Books& books, SessionId session) {
    for (const WaitId id : books.waits.of(session)) books.waits.take(id);
}

void close_waits(Books& books, SessionId session, ArenaId arena, Effects& out) {
    for (const WaitId id : books.waits.of(session)) {
        if (books.waits.get(id).key.arena != arena) continue;
        fail_wait(books, id, {Errc::kClosed, 0, "wait"}, out);
    }
}

namespace {

void expire_wait(Books& books, WaitId id, Effects& out) {
    const Wait& wait = books.waits.get(id);
    const Error late{Errc::kTimeout, 0, "wait"};
    if (wait.key.kind != WaitKind::kShrink) return fail_wait(books, id, late, out);
    // One survivor's grace ends the attempt for all: a group of the others would be a surprise
    // to the one that gave up, which is alive and may still use the old buffers.
    for (const WaitId other : books.waits.with_key(WaitKey(wait.key))) {
        fail_wait(books, other, late, out);
    }
}

}  // namespace

void expire_waits(Books& books, TimePoint now, Effects& out) {
    while (const auto id = books.waits.expired(now)) expire_wait(books, *id, out);
}

}  // namespace fabricd

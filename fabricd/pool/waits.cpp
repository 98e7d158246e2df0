#include "fabricd/pool/waits.hpp"

#include <set>
#include <string>

#include "fabricd/pool/refusals.hpp"
#include "libfabricshm/base/reason.hpp"

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

// Of a group that its ranks shrink: the live ones that have not asked, and the first of them.
std::string missing_ranks(const Books& books, const WaitKey& key, int& first) {
    const Arena* arena = books.find_arena(key.arena);
    if (arena == nullptr) return "";
    const auto found = arena->groups.find(key.group);
    if (found == arena->groups.end()) return "";
    const Group& group = found->second;
    std::set<int> asked;
    for (const WaitId id : books.waits.with_key(key)) asked.insert(books.waits.get(id).rank);
    std::string ranks;
    for (int rank = 0; rank < group.world(); ++rank) {
        const Member& member = group.members[static_cast<std::size_t>(rank)];
        if (member.state != MemberState::kLive || asked.count(rank) != 0) continue;
        const Session* session = books.find_session(member.session);
        if (ranks.empty()) first = rank;
        ranks += (ranks.empty() ? "rank " : ", ") + std::to_string(rank);
        if (session != nullptr) ranks += " (pid " + std::to_string(session->peer.pid) + ")";
    }
    return ranks;
}

// Of a group that is to be made, and one that waits for it. Where ranks left it to the daemon to
// number them, nothing is known but how many there are.
Error not_there(const Books& books, const Wait& wait, const Error& late) {
    std::set<int> come;
    for (const WaitId id : books.waits.with_key(wait.key)) come.insert(books.waits.get(id).rank);
    const std::size_t count = books.waits.with_key(wait.key).size();
    if (come.count(-1) != 0) {
        return fabricshm::explain(late, "of %d ranks %zu are there", wait.world, count);
    }
    std::string ranks;
    for (int rank = 0; rank < wait.world; ++rank) {
        if (come.count(rank) == 0) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    return fabricshm::explain(late, "of %d ranks these are not there: %s", wait.world,
                              ranks.c_str());
}

void expire_wait(Books& books, WaitId id, Effects& out) {
    const Wait& wait = books.waits.get(id);
    const Error late{Errc::kTimeout, 0, "wait"};
    if (wait.key.kind == WaitKind::kJoin) {
        return fail_wait(books, id, not_there(books, wait, late), out);
    }
    if (wait.key.kind != WaitKind::kShrink) return fail_wait(books, id, late, out);
    // One survivor's grace ends the attempt for all: a group of the others would be a surprise
    // to the one that gave up, which is alive and may still use the old buffers.
    const WaitKey key = wait.key;
    int first = 0;
    const std::string missing = missing_ranks(books, key, first);
    const Error named{Errc::kTimeout, first, "wait"};
    for (const WaitId other : books.waits.with_key(key)) {
        fail_wait(books, other,
                  missing.empty() ? late
                                  : fabricshm::explain(named, "%s did not ask to shrink the group",
                                                       missing.c_str()),
                  out);
    }
}

}  // namespace

void expire_waits(Books& books, TimePoint now, Effects& out) {
    while (const auto id = books.waits.expired(now)) expire_wait(books, *id, out);
}

}  // namespace fabricd

#include "fabricd/pool/commits.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/waits.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using fabricshm::explain;
using fabricshm::format_bytes;
using fabricshm::kArenaStep;

namespace {

constexpr const char* kCommitStep = "commit arena";

// Some 20 ms of clearing: a request that finds no hole meanwhile waits for no more than that.
constexpr Bytes kCommitPiece = 64 * fabricshm::kMiB;
static_assert(kCommitPiece % kArenaStep == 0);

// 0: there is no smaller one.
Bytes smaller(Bytes piece) {
    return piece / 2 / kArenaStep * kArenaStep;
}

WaitKey key_of(const Arena& arena) {
    return {WaitKind::kCommit, arena.id, "", GroupId::kNone};
}

}  // namespace

Result<void> Commits::ask(Ticket ticket, ArenaId id) {
    FABRIC_TRY(Arena * arena, books_.arena_written_by(ticket.session, id));
    if (arena->published) {
        return explain({Errc::kUnsupported, 0, kCommitStep},
                       "arena '%s' is published: its maker and the pool agree on what it has",
                       arena->name.c_str());
    }
    if (arena->state != ArenaState::kHere) return Error{Errc::kBusy, 0, kCommitStep};
    if (arena->committed != arena->bytes) return wait_for_all(ticket, *arena);
    Effects out;
    out.answers.push_back({ticket, proto::Type::kArenaCommit, Error{Errc::kOk, 0, ""}, {}});
    carry_out_(std::move(out));
    return {};
}

// While any request waits the arena grows: what that comes to brings us to go_on().
Result<void> Commits::wait_for_all(Ticket ticket, Arena& arena) {
    const WaitKey key = key_of(arena);
    const bool is_first = books_.waits.with_key(key).empty();
    FABRIC_TRY_VOID(add_wait(books_, {ticket, TimePoint::max(), key, proto::Type::kArenaCommit}));
    if (is_first) pieces_[arena.id] = kCommitPiece;
    if (arena.growing != Growing::kNot) return {};
    const Result<void> begun = begin(arena);
    if (begun.ok()) return {};
    // It is the only one.
    for (const WaitId wait : books_.waits.with_key(key)) books_.waits.take(wait);
    pieces_.erase(arena.id);
    return begun;
}

// The next piece, or of it what the quota admits. It need not be the last: what pool and quota
// allow is committed, whether or not that is all.
Result<void> Commits::begin(Arena& arena) {
    if (journal_.behind()) return journal_.refusal();
    for (Bytes& piece = pieces_.at(arena.id); piece != 0; piece = smaller(piece)) {
        const Bytes end = fabricshm::round_up(arena.committed + piece, kArenaStep);
        const Bytes to = std::min(end, arena.bytes);
        if (!books_.users.grow_arena(arena.uid, to - arena.committed).ok()) continue;
        arena.growing = Growing::kAsAWhole;
        work_.grow(arena.id, to, to);
        return {};
    }
    const auto quota = books_.users.check_growth(arena.uid, arena.bytes - arena.committed);
    return refusal(arena, quota.error());
}

void Commits::go_on(Arena& arena, bool own, Bytes to, const Result<void>& done, Effects& out) {
    // Those that asked may have ended.
    if (books_.waits.with_key(key_of(arena)).empty()) {
        pieces_.erase(arena.id);
        return;
    }
    if (arena.committed == arena.bytes) return answer(arena, {Errc::kOk, 0, ""}, out);
    if (own && !done.ok()) {
        // A size that was refused is not tried again while these wait: they end, however many other
        // requests come in between.
        Bytes& piece = pieces_.at(arena.id);
        const bool is_full = done.error().code == Errc::kNoMemory;
        piece = is_full ? smaller(std::min(piece, to - arena.committed)) : 0;
        if (piece == 0) {
            const Bytes lacking = arena.bytes - arena.committed;
            const Error why = refusal(arena, refuse_by_pool(done.error(), lacking, work_.totals()));
            fabricshm::log(fabricshm::LogLevel::kWarning, "%s", describe(why).c_str());
            return answer(arena, why, out);
        }
    }
    if (arena.growing != Growing::kNot) return;  // for others
    const Result<void> begun = begin(arena);
    if (!begun.ok()) answer(arena, begun.error(), out);
}

Error Commits::refusal(const Arena& arena, const Error& why) const {
    const std::string limit = explanation_of(why);
    return explain({why.code, why.detail, kCommitStep}, "arena '%s' has %s of its %s committed: %s",
                   arena.name.c_str(), format_bytes(arena.committed).c_str(),
                   format_bytes(arena.bytes).c_str(), limit.c_str());
}

void Commits::answer(const Arena& arena, const Error& outcome, Effects& out) {
    pieces_.erase(arena.id);
    for (const WaitId id : books_.waits.with_key(key_of(arena))) {
        const Wait wait = *books_.waits.take(id);
        out.answers.push_back(outcome.code == Errc::kOk
                                  ? Answer{wait.ticket, wait.asked, outcome, {}}
                                  : refusal_to(wait.ticket, wait.asked, outcome));
    }
}

}  // namespace fabricd

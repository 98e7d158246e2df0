#include "fabricd/pool/registry.hpp"

#include "fabricd/pool/refusals.hpp"

#include <algorithm>

#include "libfabricshm/base/fault_point.hpp"

namespace fabricd {

Registry::Registry(const Limits& limits, const Parts& parts)
    : slice_left_(limits.freed_at_once),
      limits_(limits),
      journal_(parts.journal),
      memory_(parts.memory),
      work_(parts.work),
      links_(parts.links),
      copies_(parts.copies),
      commits_whole_(parts.commits_whole),
      quotas_(limits),
      devices_(parts.devices) {}

Registry::Session* Registry::find_session(SessionId session) {
    const auto found = sessions_.find(session);
    return found == sessions_.end() ? nullptr : &found->second;
}

Arena* Registry::find_arena(ArenaId arena) {
    const auto found = arenas_.find(arena);
    return found == arenas_.end() ? nullptr : &found->second;
}

// An arena that the session has not opened does not exist for it, whoever it belongs to.
Result<Arena*> Registry::arena_of(SessionId session, ArenaId arena) {
    Arena* found = find_arena(arena);
    if (found == nullptr || found->sessions.count(session) == 0 || is_ending(session) ||
        is_leaving(session, arena)) {
        return Error{Errc::kNotFound, 0, "find arena"};
    }
    return found;
}

Result<void> Registry::add_wait(Wait wait) {
    const auto most = static_cast<std::size_t>(limits_.max_waits_per_session);
    if (waits_.count_of(wait.ticket.session) >= most) {
        return refuse_count("waits of the session", "this session", "requests that wait",
                            limits_.max_waits_per_session, "");
    }
    waits_.add(std::move(wait));
    return {};
}

void Registry::fail_wait(WaitId id, const Error& error) {
    const auto wait = waits_.take(id);
    if (wait) refuse(wait->ticket, wait->asked, error);
}

void Registry::cancel_waits(SessionId session, ArenaId arena, bool answer) {
    for (const WaitId id : waits_.of(session)) {
        if (arena != ArenaId::kNone && waits_.get(id).key.arena != arena) continue;
        if (answer) fail_wait(id, {Errc::kClosed, 0, "wait"});
        if (!answer) waits_.take(id);
    }
}

void Registry::expire_wait(WaitId id) {
    const Wait& wait = waits_.get(id);
    const Error late{Errc::kTimeout, 0, "wait"};
    if (wait.key.kind != WaitKind::kShrink) return fail_wait(id, late);
    // One survivor's grace ends the attempt for all: a group of the others would be a surprise
    // to the one that gave up, who is alive and may still use the old buffers.
    for (const WaitId other : waits_.with_key(WaitKey(wait.key))) fail_wait(other, late);
}

void Registry::journal_rewritten() {
    journal_.caught_up();
    for (Answer& answer : unwritten_) answers_.push_back(std::move(answer));
    unwritten_.clear();
}

std::vector<SessionId> Registry::expire(TimePoint now) {
    std::vector<SessionId> ended;
    slice_left_ = limits_.freed_at_once;
    while (const auto id = waits_.expired(now)) expire_wait(*id);
    while (!lost_.empty() && lost_.begin()->first <= now) {
        ended.push_back(lost_.begin()->second);
        end_session(ended.back(), "did not come back");
    }
    if (away_until_ <= now) give_up_on_away();
    settle_quotas(now);
    free_in_turn();
    if (shards_due_ <= now) {
        shards_pause_ = std::min(2 * shards_pause_, kMaxShardPause);
        sweep_shards();
    }
    const bool look_again = shards_asked_ && shards_due_ == TimePoint::max();
    if (look_again) shards_due_ = fabricshm::deadline_after(now, shards_pause_);
    return ended;
}

// What was begun by deaths and is too much for one turn.
void Registry::free_in_turn() {
    for (const SessionId id : std::set<SessionId>(ending_)) {
        if (slice_left_ == 0) break;
        if (is_ending(id)) slice_left_ = end_some(id, slice_left_);
    }
    for (const auto& [key, ticket] : std::map(leaving_)) {
        if (slice_left_ == 0) break;
        const auto& [session, arena] = key;
        if (is_leaving(session, arena)) slice_left_ = leave_some(session, arena, slice_left_);
    }
    for (const ArenaId id : std::set<ArenaId>(freeing_)) {
        Arena* const arena = find_arena(id);
        if (arena != nullptr) slice_left_ = free_some(*arena, slice_left_);
    }
}

TimePoint Registry::next_deadline() const {
    // The next turn, at once.
    const bool goes_on = !freeing_.empty() || !ending_.empty() || !leaving_.empty();
    if (goes_on) return TimePoint::min();
    const TimePoint lost = lost_.empty() ? TimePoint::max() : lost_.begin()->first;
    const TimePoint quotas = std::min(quotas_.next_deadline(), devices_.next_deadline());
    return std::min({waits_.next_deadline(), lost, away_until_, shards_due_, quotas});
}

}  // namespace fabricd

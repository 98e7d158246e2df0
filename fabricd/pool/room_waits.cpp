#include "fabricd/pool/room_waits.hpp"

#include <algorithm>
#include <utility>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

bool RoomWaits::wait_for_hole(SessionId session, ArenaId arena, Bytes bytes, bool owned,
                              const std::function<void()>& serve) {
    if (has_hole(session, arena, bytes, owned)) return false;
    return park(session, [=, this](bool last, Effects&) {
        if (!last && !has_hole(session, arena, bytes, owned)) return false;
        serve();
        return true;
    });
}

// True as well for a request that is refused in any case.
bool RoomWaits::has_hole(SessionId session, ArenaId id, Bytes bytes, bool owned) const {
    const auto arena = books_.arena_written_by(session, id);
    if (!arena.ok() || (*arena)->state != ArenaState::kHere) return true;
    // In an arena that is smaller nothing that goes makes room for it.
    const Bytes rounded = RegionAllocator::rounded(bytes);
    if (rounded == 0 || rounded > (*arena)->bytes) return true;
    return regions_.fits(**arena, bytes) && (!owned || regions_.quota_admits(session, bytes));
}

Result<void> RoomWaits::open(Ticket ticket, const proto::ArenaOpen& request, Effects& out) {
    const Result<void> asked = arenas_.open(ticket, request, out);
    if (asked.ok() || asked.error().code != Errc::kNoMemory) return asked;
    const auto again = [=, this](bool last, Effects& later) {
        const Session* session = books_.find_session(ticket.session);
        if (session == nullptr || session->ending) return true;  // nothing to answer
        const Result<void> done = arenas_.open(ticket, request, later);
        if (!done.ok() && done.error().code == Errc::kNoMemory && !last) return false;
        if (!done.ok()) {
            const auto type = proto::Type::kArenaOpen;
            later.answers.push_back(refusal_to(ticket, type, done.error()));
        }
        return true;
    };
    if (park(ticket.session, again)) return {};
    return asked;
}

bool RoomWaits::makes_again(ArenaId id, const Result<fabricshm::PoolPiece>& piece) {
    const bool was_again = made_again_.erase(id) != 0;
    if (piece.ok() || piece.error().code != Errc::kNoMemory || was_again) return false;
    return park(SessionId::kNone, [id, this](bool last, Effects&) {
        const Arena* arena = books_.find_arena(id);
        if (arena == nullptr) return true;
        const fabricshm::PoolTotals pool = work_.totals();
        if (!last && pool.used + arena->committed > pool.capacity) return false;
        made_again_.insert(id);
        work_.create(id, arena->name, arena->uid, arena->bytes);
        return true;
    });
}

bool RoomWaits::park(SessionId session, Attempt attempt) {
    if (!gives_back(books_.last_id)) return false;
    int& count = counts_[session];
    if (count >= books_.limits.max_waits_per_session) return false;
    ++count;
    waiting_.push_back({session, books_.last_id, std::move(attempt)});
    return true;
}

// Of sessions that there were then: those that come and end later must not keep a request waiting
// for a refusal that is due.
bool RoomWaits::gives_back(std::uint64_t last_id) const {
    const bool ends = !books_.ending.empty() && raw(*books_.ending.begin()) <= last_id;
    const bool leaves =
        !books_.leaving.empty() && raw(books_.leaving.begin()->first.first) <= last_id;
    return ends || leaves;
}

void RoomWaits::serve_some(Effects& out) {
    // Not those that are added meanwhile.
    for (auto left = std::min<std::size_t>(waiting_.size(), kAttempts); left > 0; --left) {
        Waiting next = std::move(waiting_.front());
        waiting_.pop_front();
        if (!next.attempt(!gives_back(next.last_id), out)) {
            waiting_.push_back(std::move(next));
            continue;
        }
        const auto count = counts_.find(next.session);
        FABRIC_CHECK(count != counts_.end() && count->second > 0);
        if (--count->second == 0) counts_.erase(count);
    }
}

}  // namespace fabricd

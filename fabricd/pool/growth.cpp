#include "fabricd/pool/growth.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/pool/refusals.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

namespace {

// What is committed in one go, some 80 ms: of a larger growth the next part is asked for when this
// one is done, so that small ones of other arenas come in between.
constexpr Bytes kGrowthSlice = 256 * fabricshm::kMiB;
static_assert(kGrowthSlice % fabricshm::kArenaStep == 0);

}  // namespace

using fabricshm::reason_of;

Arena* Growth::arena_to_grow(SessionId session, ArenaId id, Bytes bytes, bool owned) {
    // Refusals are for the request itself to say.
    const auto arena = books_.arena_written_by(session, id);
    if (!arena.ok()) return nullptr;
    const std::string& device = books_.session(session).device;
    if (owned && !books_.devices.admits(device, RegionAllocator::rounded(bytes))) return nullptr;
    return needed(*arena.value(), bytes) ? arena.value() : nullptr;
}

bool Growth::park(Arena& arena, Bytes bytes, Serve serve) {
    const auto need = needed(arena, bytes);
    // As many as may wait for anything else.
    const std::size_t most =
        arena.sessions.size() * static_cast<std::size_t>(books_.limits.max_waits_per_session);
    if (!need || arena.parked.size() >= most) return false;
    if (arena.growing == Growing::kNot) {
        // All of it has to fit; the part that is committed now is charged now.
        if (!books_.users.grow_arena(arena.uid, *need - arena.committed).ok()) return false;
        const Bytes to = std::min(*need, arena.committed + kGrowthSlice);
        books_.users.resize_arena(arena.uid, *need, to);
        arena.growing = Growing::kForHoles;
        arena.parked.push_back({bytes, std::move(serve)});
        work_.grow(arena.id, to, *need);
        return true;
    }
    arena.parked.push_back({bytes, std::move(serve)});
    return true;
}

// How many bytes have to be committed for a hole of `bytes` at the end of what is; nothing when
// there is such a hole, or never will be.
std::optional<Bytes> Growth::needed(const Arena& arena, Bytes bytes) const {
    const Bytes rounded = RegionAllocator::rounded(bytes);
    const bool grows = arena.state == ArenaState::kHere && arena.committed < arena.bytes;
    if (!grows || rounded == 0 || arena.space.largest_hole() >= rounded) return std::nullopt;
    if (journal_.behind()) return std::nullopt;
    const Bytes lacking = rounded - arena.space.bytes_free_at_end();
    if (lacking > arena.bytes - arena.committed) return std::nullopt;
    const Bytes whole_steps = fabricshm::round_up(arena.committed + lacking, fabricshm::kArenaStep);
    return std::min(whole_steps, arena.bytes);
}

Bytes Growth::need_of(const Arena& arena) const {
    if (arena.growing == Growing::kAsAWhole) return 0;  // they wait for their own
    Bytes most = 0;
    for (const Parked& parked : arena.parked) {
        most = std::max(most, needed(arena, parked.bytes).value_or(0));
    }
    return most;
}

// Of those that can stand in the way the one that does: the arena's own end, the quota of its user,
// and the pool, which has just refused to grow it.
Error Growth::no_room(const char* step, const Arena& arena, Bytes bytes) const {
    const auto need = needed(arena, bytes);
    if (!need) return refuse_hole(step, arena, bytes);
    const Bytes more = *need - arena.committed;
    const auto quota = books_.users.check_growth(arena.uid, more);
    const Error error{Errc::kNoMemory, 0, step};
    if (!quota.ok()) return explain(error, "%s", reason_of(quota.error()));
    if (failure_.code == Errc::kOk) {
        return explain(error, "too many requests wait for arena '%s' to grow", arena.name.c_str());
    }
    const std::string why = describe(refuse_by_pool(failure_, more, work_.totals()));
    return explain(error, "arena '%s' can't grow: %s", arena.name.c_str(), why.c_str());
}

Result<void> Growth::finish(Arena& arena, Bytes to, const Result<void>& done) {
    FABRIC_CHECK(arena.growing != Growing::kNot);
    const bool is_piece = std::exchange(arena.growing, Growing::kNot) == Growing::kAsAWhole;
    const Result<void> outcome = done.ok() ? extend(arena, to) : done;
    failure_ = outcome.error();
    if (outcome.ok()) return {};
    books_.users.resize_arena(arena.uid, to - arena.committed, 0);
    if (is_piece) return outcome;  // a smaller one may do
    fabricshm::log(fabricshm::LogLevel::kWarning, "arena %llu (%s) can't grow: %s", shown(arena.id),
                   arena.name.c_str(), describe(outcome.error()).c_str());
    return outcome;
}

// Written down before anything is granted there: a region beyond what a restarted daemon believes
// to be committed would be a contradiction.
Result<void> Growth::extend(Arena& arena, Bytes to) {
    FAULT_POINT("grow.committed");
    FABRIC_TRY_VOID(journal_.add(ArenaGrownRecord{raw(arena.id), to}));
    FAULT_POINT("grow.written");
    const Bytes before = arena.committed;
    arena.committed = to;
    arena.space.extend(to);
    // What the hardware lost there was reported before it could be granted.
    for (const auto& [offset, bytes] : arena.lost.all()) {
        const std::uint64_t from = std::max<std::uint64_t>(offset, before);
        const std::uint64_t end = std::min<std::uint64_t>(offset + bytes, to);
        if (from < end) arena.space.reserve_free(from, end - from);
    }
    return {};
}

}  // namespace fabricd

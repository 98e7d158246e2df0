#include "fabricd/pool/elastic.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::ElasticWord;
using fabricshm::ElasticWords;
using fabricshm::kArenaStep;

namespace {

// How soon a maker's word is found while one is waited for, and otherwise.
constexpr Duration kSoon = std::chrono::milliseconds(10);
constexpr Duration kSeldom = std::chrono::milliseconds(250);
// What a cache gets in one go: a request that comes then waits for no more than that.
constexpr Bytes kRegrowth = 256 * fabricshm::kMiB;

constexpr std::string_view kCacheSubject = "cache:";

bool is_here(const Arena& arena) {
    return arena.published && arena.state == ArenaState::kHere;
}

ElasticWord kept_of(const ElasticWords& words) {
    // Acquire: what the maker stored behind the bytes that it gives up comes before their end.
    return fabricshm::unpack_elastic(words.kept.load(std::memory_order_acquire));
}

// What it was asked for and has not given, and what goes back now.
Bytes on_its_way(const Arena& arena) {
    const ElasticState& state = arena.published->elastic;
    return arena.committed - std::min(state.target, arena.committed) + state.releasing;
}

}  // namespace

ElasticWords* Elastic::words_of(const Arena& arena) const {
    if (!is_able_ || !is_here(arena)) return nullptr;
    const auto span = memory_.span(arena.id, 0, fabricshm::kPublishedHeaderBytes);
    if (!span.ok()) return nullptr;
    return &reinterpret_cast<fabricshm::PublishedHeader*>(span->data)->elastic;
}

// What a maker says that it needs is its own word: one that says all of it gives nothing.
Bytes Elastic::least_of(const Arena& arena) const {
    const ElasticWords* const words = words_of(arena);
    if (words == nullptr) return arena.committed;
    // Relaxed: a number, orders nothing.
    const Bytes floor = words->floor.load(std::memory_order_relaxed);
    if (floor == 0 || floor >= arena.committed) return arena.committed;
    // What is granted stays, and what the hardware lost; the maker of a cache has no regions.
    const Bytes taken = arena.committed - arena.space.bytes_free_at_end();
    return std::min(fabricshm::round_up(std::max(floor, taken), kArenaStep), arena.committed);
}

// Beyond what it is asked for already.
Bytes Elastic::givable(const Arena& arena) const {
    if (!is_here(arena) || arena.growing != Growing::kNot) return 0;
    const Bytes holds = std::min(arena.published->elastic.target, arena.committed);
    const Bytes least = least_of(arena);
    return holds > least ? holds - least : 0;
}

Bytes Elastic::quota_of(const Arena& arena) const {
    const Bytes quota = arena.published->elastic.quota;
    return quota == 0 ? arena.bytes : std::min(quota, arena.bytes);
}

// What of a quota can be committed: all of the arena, or whole steps. Never more than the quota,
// which is what others count with.
Bytes Elastic::usable_of(const Arena& arena) const {
    const Bytes quota = quota_of(arena);
    return quota == arena.bytes ? quota : quota / kArenaStep * kArenaStep;
}

void Elastic::settle(ArenaId id, bool is_new) {
    Arena* const found = books_.find_arena(id);
    ElasticWords* const words = found != nullptr ? words_of(*found) : nullptr;
    if (words == nullptr) return;
    Arena& arena = *found;
    ElasticState& state = arena.published->elastic;
    if (is_new) {
        words->kept.store(0, std::memory_order_relaxed);
        words->floor.store(0, std::memory_order_relaxed);
        words->target.store(0, std::memory_order_relaxed);
    }
    // Serials go on over restarts of the daemon. The maker could store another one here, and would
    // get its own answers wrong by it.
    const auto target = words->target.load(std::memory_order_relaxed);
    state.serial = fabricshm::unpack_elastic(target).serial;
    words->committed.store(arena.committed, std::memory_order_release);
    set_target(arena, arena.committed);
    next_poll_ = TimePoint::min();
}

// Also the one that it has: a maker that kept to less may use all of it again.
void Elastic::set_target(Arena& arena, Bytes bytes) {
    ElasticWords* const words = words_of(arena);
    if (words == nullptr) return;
    ElasticState& state = arena.published->elastic;
    // While pages go back nothing else is asked, so that no answer means two things.
    FABRIC_CHECK(state.releasing == 0 && bytes <= arena.committed);
    state.serial = fabricshm::next_serial(state.serial);
    state.target = bytes;
    // Release: a maker that sees more than it had finds `committed` raised.
    words->target.store(fabricshm::pack({state.serial, bytes}), std::memory_order_release);
}

void Elastic::grown(Arena& arena) {
    ElasticWords* const words = words_of(arena);
    if (words == nullptr || arena.published->elastic.releasing != 0) return;
    words->committed.store(arena.committed, std::memory_order_release);
    set_target(arena, arena.committed);
}

// ---- Giving way -----------------------------------------------------------------------------

bool Elastic::waits_for_room(ArenaId id, const Result<fabricshm::PoolPiece>& piece) {
    const Arena* const arena = books_.find_arena(id);
    const bool is_full = !piece.ok() && piece.error().code == Errc::kNoMemory;
    const bool may_fit = arena != nullptr && arena->bytes <= work_.totals().capacity;
    const auto retry = [id, this] {
        const Arena* still = books_.find_arena(id);
        if (still != nullptr) work_.create(id, still->name, still->uid, still->bytes);
    };
    if (is_full && may_fit && wait_for_room(id, arena->committed, retry)) return true;
    takers_.erase(id);
    return false;
}

bool Elastic::waits_for_room(Arena& arena, Bytes to, Bytes need, const Result<void>& done) {
    const bool is_full = !done.ok() && done.error().code == Errc::kNoMemory;
    const Bytes all = std::max(to, need);
    const auto retry = [this, id = arena.id, to, all] {
        if (books_.find_arena(id) != nullptr) work_.grow(id, to, all);
    };
    const bool is_asked = !arena.parked.empty() || arena.growing == Growing::kAsAWhole;
    if (is_full && is_asked && wait_for_room(arena.id, all - arena.committed, retry)) return true;
    takers_.erase(arena.id);
    // A cache's own: what the pool counts as free the machine has not.
    if (!done.ok() && !is_asked) has_failed_ = true;
    return false;
}

bool Elastic::wait_for_room(ArenaId taker, Bytes more, Retry retry) {
    if (!is_able_) return false;
    const auto found = takers_.find(taker);
    if (found != takers_.end() && found->second.is_over) {
        takers_.erase(found);
        demand_.refused += more;
        has_demand_ = true;
        return false;
    }
    Bytes all = 0;
    for (const auto& [id, arena] : books_.arenas) {
        if (id == taker || !arena.published) continue;
        // After a restart: presented soon, or never. What it keeps is seen only then.
        if (arena.state == ArenaState::kAway) all += arena.committed;
        if (is_here(arena)) all += givable(arena) + on_its_way(arena);
    }
    const fabricshm::PoolTotals pool = work_.totals();
    const Bytes room = pool.capacity - std::min(pool.used, pool.capacity);
    // It was refused for want of memory of the machine, of which the pool knows nothing.
    const Bytes beyond = room >= more ? room : 0;
    if (all + room - beyond < more) return false;
    const auto [entry, is_first] = takers_.try_emplace(taker);
    Taker& one = entry->second;
    if (is_first) demand_.waited += more;
    one.more = more;
    one.beyond = beyond;
    one.is_trying = false;
    one.retry = std::move(retry);
    has_demand_ = true;
    ask();
    next_poll_ = TimePoint::min();
    return true;
}

// Of what all that wait need, what is neither free nor on its way.
Bytes Elastic::missing() const {
    Bytes needs = 0;
    for (const auto& [id, taker] : takers_) needs += taker.more + taker.beyond;
    const fabricshm::PoolTotals pool = work_.totals();
    Bytes comes = pool.capacity - std::min(pool.used, pool.capacity);
    for (const auto& [id, arena] : books_.arenas) {
        // One that is away was not asked yet; those that are here may have enough.
        if (is_here(arena)) comes += on_its_way(arena);
    }
    return needs > comes ? needs - comes : 0;
}

void Elastic::ask() {
    for (Bytes lacking = missing(); lacking != 0; lacking = missing()) {
        Arena* giver = nullptr;
        for (auto& [id, arena] : books_.arenas) {
            const bool is_idle = arena.published && arena.published->elastic.releasing == 0;
            if (!is_idle || takers_.count(id) != 0 || givable(arena) == 0) continue;
            if (giver == nullptr || givable(arena) > givable(*giver)) giver = &arena;
        }
        if (giver == nullptr) return;
        const Bytes holds = std::min(giver->published->elastic.target, giver->committed);
        const Bytes gives = std::min(fabricshm::round_up(lacking, kArenaStep), givable(*giver));
        set_target(*giver, holds - gives);
    }
}

void Elastic::take_answer(Arena& arena) {
    ElasticWords* const words = words_of(arena);
    if (words == nullptr) return;
    ElasticState& state = arena.published->elastic;
    const bool grows = arena.growing != Growing::kNot;
    if (state.releasing != 0 || grows || journal_.behind()) return;
    const ElasticWord kept = kept_of(*words);
    // Input: of the newest target, within the arena, whole steps. It may be more than the target,
    // when readers have the rest pinned.
    const bool is_all = kept.bytes <= state.target;
    const Bytes to = is_all ? state.target : fabricshm::round_up(kept.bytes, kArenaStep);
    if (kept.serial != state.serial || to >= arena.committed || to < least_of(arena)) return;
    FAULT_POINT("elastic.before");
    // Before the pages go: a daemon that is killed in between finds a maker that uses them no more,
    // and gives them back when the arena is presented.
    const auto written = journal_.add(ArenaShrunkRecord{raw(arena.id), to});
    if (!written.ok()) return;
    FAULT_POINT("elastic.written");
    state.releasing = arena.committed - to;
    arena.committed = to;
    arena.space.truncate(to);
    work_.shrink(arena.id, to);
}

bool Elastic::shrunk(Arena& arena, Bytes to, const Result<void>& done, Effects& out) {
    if (!arena.published || arena.published->elastic.releasing == 0) return false;
    ElasticState& state = arena.published->elastic;
    FABRIC_CHECK(arena.committed == to);  // a growth that was asked for since ends behind it
    if (!done.ok()) {
        fabricshm::log(fabricshm::LogLevel::kError,
                       "arena %llu (%s) keeps pages that it gave up: %s", shown(arena.id),
                       arena.name.c_str(), describe(done.error()).c_str());
    }
    FAULT_POINT("elastic.gone");
    books_.users.resize_arena(arena.uid, std::exchange(state.releasing, 0), 0);
    if (ElasticWords* const words = words_of(arena)) {
        words->committed.store(to, std::memory_order_release);
    }
    next_poll_ = TimePoint::min();
    out.left.push_back(arena.id);  // its last session may have left meanwhile
    return true;
}

// ---- Time -----------------------------------------------------------------------------------

void Elastic::poll(TimePoint now) {
    if (now < next_poll_) return;
    if (std::exchange(has_demand_, false)) rests_until_ = now + kRest;
    if (std::exchange(has_failed_, false)) rests_until_ = now + kLongRest;
    bool any = false;
    bool is_waited_for = !takers_.empty();
    for (auto& [id, arena] : books_.arenas) {
        if (!is_here(arena)) continue;
        any = true;
        take_answer(arena);
        const ElasticState& state = arena.published->elastic;
        is_waited_for = is_waited_for || state.releasing != 0 || state.target < arena.committed;
    }
    serve(now);
    if (takers_.empty()) {
        let_grow(now);
    } else {
        rests_until_ = now + kRest;
        ask();
    }
    next_poll_ =
        !any && takers_.empty() ? TimePoint::max() : now + (is_waited_for ? kSoon : kSeldom);
}

// Each gets its turn when there is room for it, the first that came first; when its time is over
// once more, whatever there is.
void Elastic::serve(TimePoint now) {
    const fabricshm::PoolTotals pool = work_.totals();
    Bytes room = pool.capacity - std::min(pool.used, pool.capacity);
    std::vector<ArenaId> due;
    for (auto& [id, taker] : takers_) {
        if (taker.until == TimePoint::min()) taker.until = now + kWait;
        if (taker.is_trying) continue;
        const Bytes needs = taker.more + taker.beyond;
        taker.is_over = now >= taker.until;
        if (needs > room && !taker.is_over) continue;
        room -= std::min(room, needs);
        taker.is_trying = true;
        due.push_back(id);
    }
    for (const ArenaId id : due) {
        const auto found = takers_.find(id);
        if (found == takers_.end()) continue;
        const Retry retry = found->second.retry;
        if (books_.find_arena(id) == nullptr) takers_.erase(found);
        retry();
    }
    // Those that were served are gone by then; arenas that ended while they waited are not.
    std::erase_if(takers_,
                  [&](const auto& one) { return books_.find_arena(one.first) == nullptr; });
}

// Towards their quotas, as long as none needs it more; down to them when they are above.
void Elastic::let_grow(TimePoint now) {
    const fabricshm::PoolTotals pool = work_.totals();
    Bytes room = pool.capacity - std::min(pool.used, pool.capacity);
    for (auto& [id, arena] : books_.arenas) {
        if (!is_here(arena) || arena.growing != Growing::kNot) continue;
        if (arena.published->elastic.releasing != 0) continue;
        const Bytes least = least_of(arena);
        const ElasticWords* const words = words_of(arena);
        if (words == nullptr || words->floor.load(std::memory_order_relaxed) == 0) continue;
        const Bytes quota = usable_of(arena);
        ElasticState& state = arena.published->elastic;
        const Bytes wanted = std::min(std::max(quota, least), arena.committed);
        // Below its quota what it was asked for, and has not given, is its own again.
        const bool is_less = wanted < state.target;
        const bool is_more = wanted > state.target && now >= rests_until_;
        if (is_less || is_more) set_target(arena, wanted);
        if (state.target < arena.committed || now < rests_until_) continue;
        const Bytes lacking = quota > arena.committed ? quota - arena.committed : 0;
        Bytes more = std::min({lacking, room / kArenaStep * kArenaStep, kRegrowth});
        if (more < kArenaStep) more = more == lacking ? lacking : 0;
        const Bytes to =
            std::min(fabricshm::round_up(arena.committed + more, kArenaStep), arena.bytes);
        if (more == 0 || to - arena.committed > room || journal_.behind()) continue;
        if (!books_.users.grow_arena(arena.uid, to - arena.committed).ok()) continue;
        arena.growing = Growing::kForHoles;
        room -= to - arena.committed;
        work_.grow(id, to, to);
    }
}

// ---- The control loop -----------------------------------------------------------------------

bool Elastic::is_about_caches(const std::vector<QuotaShift>& shifts) {
    return !shifts.empty() && shifts.front().device.starts_with(kCacheSubject);
}

Arena* Elastic::cache_named(const std::string& subject) const {
    if (!subject.starts_with(kCacheSubject)) return nullptr;
    const auto named = books_.arena_names.find(subject.substr(kCacheSubject.size()));
    if (named == books_.arena_names.end()) return nullptr;
    Arena& arena = books_.arena(named->second);
    return words_of(arena) != nullptr ? &arena : nullptr;
}

Result<void> Elastic::shift(const std::vector<QuotaShift>& shifts) {
    for (const QuotaShift& one : shifts) {
        const Arena* const arena = cache_named(one.device);
        if (arena == nullptr) return Error{Errc::kNotFound, 0, "quota of a cache"};
        if (quota_of(*arena) != one.before_bytes) return Error{Errc::kBusy, 0, "quota of a cache"};
    }
    for (const QuotaShift& one : shifts) {
        Arena& arena = *cache_named(one.device);
        arena.published->elastic.quota = std::min<Bytes>(one.after_bytes, arena.bytes);
    }
    next_poll_ = TimePoint::min();
    return {};
}

std::vector<CacheView> Elastic::views() const {
    std::vector<CacheView> all;
    for (const auto& [id, arena] : books_.arenas) {
        const ElasticWords* const words = words_of(arena);
        if (words == nullptr || words->floor.load(std::memory_order_relaxed) == 0) continue;
        CacheView view;
        view.arena_id = raw(id);
        view.name = arena.name;
        view.bytes = arena.bytes;
        view.bytes_committed = arena.committed;
        view.quota_bytes = quota_of(arena);
        view.target_bytes = arena.published->elastic.target;
        view.floor_bytes = least_of(arena);
        std::uint64_t use[fabricshm::kElasticUseWords];
        // Relaxed: figures of one moment, of which none depends on another.
        for (std::size_t i = 0; i < fabricshm::kElasticUseWords; ++i) {
            use[i] = words->use[i].load(std::memory_order_relaxed);
        }
        view.hits = use[0];
        view.misses = use[1];
        view.stall_ns = static_cast<std::int64_t>(use[2] & ~(std::uint64_t{1} << 63));
        view.bytes_refetched = use[3];
        view.bytes_refetched_near = use[4];
        view.bytes_used = use[5];
        view.readers = use[6];
        all.push_back(std::move(view));
    }
    return all;
}

}  // namespace fabricd

// View: which ranks wait for which, from what sessions show in their pages.

#include <algorithm>
#include <bitset>
#include <map>
#include <tuple>

#include "fabricd/pool/view.hpp"

namespace fabricd {

namespace {

using fabricshm::kPeersMax;
using fabricshm::SessionWait;
using fabricshm::WaitRecord;

// From when on a join counts as a wait, and an operation: its session shows it from then on, so
// that one which began later is a claim that is not true.
constexpr auto kShownFrom = std::chrono::seconds(2);

using Ranks = std::bitset<kPeersMax>;
using Key = std::tuple<std::uint64_t, std::uint64_t, std::string, std::uint64_t>;

struct Row {
    Ranks waiting;
    Ranks late;
    std::int64_t waited_ms = 0;
};

// A beginning is never before the host's, which is 0, nor after now, whatever the session says.
std::int64_t waited_ms(const WaitRecord& record, TimePoint now) {
    const auto now_ns = std::chrono::nanoseconds(now.time_since_epoch()).count();
    return (now_ns - std::min(record.began_ns, now_ns)) / 1'000'000;
}

std::vector<std::int32_t> list(const Ranks& ranks) {
    std::vector<std::int32_t> all;
    for (int rank = 0; rank < kPeersMax; ++rank) {
        if (ranks.test(static_cast<std::size_t>(rank))) all.push_back(rank);
    }
    return all;
}

// In a chain each rank waits for the one before, which waits itself: late is where that begins.
Ranks latest(const Row& row) {
    const Ranks first = row.late & ~row.waiting;
    return first.any() ? first : row.late;
}

// The group that the record is about; nullptr for a claim that is not true.
const Group* confirmed(const Books& books, const SessionWait& wait) {
    const WaitRecord& record = wait.record;
    const ArenaId arena{record.arena_id};
    const GroupId group{record.group_id};
    if (!account_of(books, SessionId{wait.session_id}, arena, group, record.rank).member)
        return nullptr;
    const Group& found = books.arena(arena).groups.at(group);
    return found.world() == record.world ? &found : nullptr;
}

LateRank late_rank(const Books& books, const Group& group, int rank) {
    const Member& member = group.members[static_cast<std::size_t>(rank)];
    const auto session = books.sessions.find(member.session);
    if (member.state != MemberState::kLive || session == books.sessions.end()) return {rank, 0, 0};
    return {rank, raw(member.session), session->second.peer.pid};
}

// Groups that their survivors shrink: late are the live ranks that have not asked.
void add_shrinking(const Books& books, TimePoint now, std::vector<WaitingView>& rows) {
    struct Asked {
        Ranks ranks;
        TimePoint since = TimePoint::max();
    };
    std::map<WaitKey, Asked> shrinking;
    books.waits.for_each([&](const Wait& wait) {
        if (wait.key.kind != WaitKind::kShrink) return;
        Asked& asked = shrinking[wait.key];
        asked.ranks.set(static_cast<std::size_t>(wait.rank));
        asked.since = std::min(asked.since, wait.since);
    });
    for (const auto& [key, asked] : shrinking) {
        const Arena& arena = books.arena(key.arena);
        const auto group = arena.groups.find(key.group);
        if (now - asked.since < kShownFrom || group == arena.groups.end()) continue;
        WaitingView row;
        row.arena_id = raw(key.arena);
        row.arena = arena.name;
        row.group_id = raw(key.group);
        row.group = group->second.name;
        row.world = group->second.world();
        row.operation = "shrink";
        row.waited_ms =
            std::chrono::duration_cast<std::chrono::milliseconds>(now - asked.since).count();
        row.waiting = list(asked.ranks);
        for (int rank = 0; rank < row.world; ++rank) {
            const auto place = static_cast<std::size_t>(rank);
            const bool is_live = group->second.members[place].state == MemberState::kLive;
            if (is_live && !asked.ranks.test(place)) {
                row.late.push_back(late_rank(books, group->second, rank));
            }
        }
        row.late_count = static_cast<std::int32_t>(row.late.size());
        rows.push_back(std::move(row));
    }
}

// Groups that are forming are waits and nothing else.
void add_forming(const Books& books, TimePoint now, std::vector<WaitingView>& rows) {
    struct Joins {
        Ranks ranks;
        int joined = 0;
        int world = 0;
        TimePoint since = TimePoint::max();
    };
    std::map<WaitKey, Joins> forming;
    books.waits.for_each([&](const Wait& wait) {
        if (wait.key.kind != WaitKind::kJoin) return;
        Joins& joins = forming[wait.key];
        if (wait.rank >= 0) joins.ranks.set(static_cast<std::size_t>(wait.rank));
        ++joins.joined;
        joins.world = wait.world;
        joins.since = std::min(joins.since, wait.since);
    });
    for (const auto& [key, joins] : forming) {
        if (now - joins.since < kShownFrom) continue;
        WaitingView row;
        row.arena_id = raw(key.arena);
        row.arena = books.arena(key.arena).name;
        row.group = key.name;
        row.world = joins.world;
        row.operation = "join";
        row.waited_ms =
            std::chrono::duration_cast<std::chrono::milliseconds>(now - joins.since).count();
        row.waiting = list(joins.ranks);
        row.late_count = joins.world - joins.joined;
        // A session that did not say its rank may become any of those that are left.
        const bool all_said = static_cast<int>(joins.ranks.count()) == joins.joined;
        for (int rank = 0; all_said && rank < joins.world; ++rank) {
            if (!joins.ranks.test(static_cast<std::size_t>(rank))) row.late.push_back({rank, 0, 0});
        }
        rows.push_back(std::move(row));
    }
}

}  // namespace

std::vector<WaitingView> waiting(const Books& books, const std::vector<SessionWait>& shown,
                                 TimePoint now) {
    std::map<Key, Row> found;
    for (const SessionWait& wait : shown) {
        const WaitRecord& record = wait.record;
        const std::int64_t waited = waited_ms(record, now);
        if (waited < kShownFrom / std::chrono::milliseconds(1)) continue;
        if (confirmed(books, wait) == nullptr) continue;
        Row& row = found[{record.arena_id, record.group_id, record.kind, record.bytes}];
        row.waiting.set(static_cast<std::size_t>(record.rank));
        for (int rank = 0; rank < record.world; ++rank) {
            if (is_late(record, rank)) row.late.set(static_cast<std::size_t>(rank));
        }
        row.waited_ms = std::max(row.waited_ms, waited);
    }
    std::vector<WaitingView> rows;
    for (const auto& [key, row] : found) {
        const auto& [arena_id, group_id, operation, bytes] = key;
        const Arena& arena = books.arena(ArenaId{arena_id});
        const Group& group = arena.groups.at(GroupId{group_id});
        WaitingView view{arena_id,          arena.name, group_id, group.name,
                         group.world(),     operation,  bytes,    row.waited_ms,
                         list(row.waiting), {},         0};
        for (const int rank : list(latest(row))) view.late.push_back(late_rank(books, group, rank));
        view.late_count = static_cast<std::int32_t>(view.late.size());
        rows.push_back(std::move(view));
    }
    add_forming(books, now, rows);
    add_shrinking(books, now, rows);
    std::ranges::stable_sort(rows, std::greater{}, &WaitingView::waited_ms);
    return rows;
}

}  // namespace fabricd

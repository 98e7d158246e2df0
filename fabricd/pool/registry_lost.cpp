// Registry: memory that the hardware lost. Whose it was, who is told, and that nobody gets it
// again.

#include <algorithm>

#include "fabricd/pool/refusals.hpp"
#include "fabricd/pool/registry.hpp"
#include "libfabricshm/base/fault_point.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

namespace {

// A session can call any page of its own job's arena lost; what it can't do is to make the list of
// them grow without end.
constexpr std::size_t kMaxRanges = 4096;

}  // namespace

Result<proto::Region> Registry::note_lost(SessionId session, const proto::Region& request) {
    FABRIC_TRY(Arena * arena, arena_of(session, ArenaId{request.arena_id}));
    constexpr Bytes kUnit = RegionAllocator::kUnit;
    const std::uint64_t first = request.offset / kUnit * kUnit;
    const std::uint64_t last = fabricshm::round_up(request.offset + request.bytes, kUnit);
    if (last > arena->bytes) return Error{Errc::kInvalid, 0, "lost bytes: outside the arena"};
    proto::Region news = lost_region(*arena, first, last - first);
    if (arena->lost.covers(first, last - first)) return news;
    if (arena->lost.all().size() >= kMaxRanges) {
        return refuse_count("lost ranges of the arena", "arena '" + arena->name + "'",
                            "lost ranges", static_cast<int>(kMaxRanges), "");
    }
    FAULT_POINT("lost.before");
    lose(*arena, first, last - first);
    FAULT_POINT("lost.after");
    tell_of_loss(*arena, news);
    return news;
}

// The bytes, and the region that they lie in; of several the first.
proto::Region Registry::lost_region(const Arena& arena, std::uint64_t offset, Bytes bytes) const {
    proto::Region news{raw(arena.id), 0, 0, offset, bytes};
    for (const auto& [id, region] : arena.regions) {
        const bool inside = region.offset < offset + bytes && offset < region.offset + region.bytes;
        if (!inside) continue;
        news.region_id = raw(id);
        news.generation = arena.leases.find(id)->epoch;
        break;
    }
    return news;
}

// Takes the bytes out of circulation: those that are free at once, those that somebody holds when
// they come back (release_space()).
void Registry::lose(Arena& arena, std::uint64_t offset, Bytes bytes) {
    // A fact, not a grant: it is true whether or not it can be written down.
    journal_.note(LostRecord{raw(arena.id), offset, bytes});
    take_lost(arena, offset, bytes);
}

void Registry::take_lost(Arena& arena, std::uint64_t offset, Bytes bytes) {
    for (const auto& [from, length] : arena.lost.intact(offset, bytes)) {
        arena.space.reserve_free(from, length);
    }
    arena.lost.add(offset, bytes);
}

void Registry::release_space(Arena& arena, std::uint64_t offset, Bytes bytes) {
    for (const auto& [from, length] : arena.lost.intact(offset, bytes)) {
        arena.space.release(from, length);
    }
}

void Registry::tell_of_loss(const Arena& arena, const proto::Region& news) {
    fabricshm::log(fabricshm::LogLevel::kError,
                   "arena %llu (%s): the hardware lost %llu bytes at offset %llu, region %llu",
                   shown(arena.id), arena.name.c_str(), static_cast<unsigned long long>(news.bytes),
                   static_cast<unsigned long long>(news.offset),
                   static_cast<unsigned long long>(news.region_id));
    for (const SessionId session : arena.sessions) send_news(session, news);
}

// To nobody's question: the ticket has no request.
void Registry::send_news(SessionId session, const proto::Region& news) {
    answers_.push_back({Ticket{session, 0}, proto::Type::kPoisoned, Error{Errc::kOk, 0, ""}, news});
}

// Who opens or presents an arena later has to know, too.
void Registry::send_losses(SessionId session, const Arena& arena) {
    for (const auto& [offset, bytes] : arena.lost.all()) {
        send_news(session, lost_region(arena, offset, bytes));
    }
}

bool Registry::is_bad(const Arena& arena, RegionId region) const {
    const Region& found = arena.regions.at(region);
    return arena.lost.touches(found.offset, found.bytes);
}

}  // namespace fabricd

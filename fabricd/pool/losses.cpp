#include "fabricd/pool/losses.hpp"

#include "fabricd/pool/refusals.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

namespace {

// A session can call any page of its own job's arena lost; what it can't do is to make the list of
// them grow without end.
constexpr std::size_t kMaxRanges = 4096;

// The bytes, and the region that they lie in; of several the first.
proto::Region region_at(const Arena& arena, std::uint64_t offset, Bytes bytes) {
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

// Not asked for: the ticket has no request.
Answer news_for(SessionId session, const proto::Region& news) {
    return {Ticket{session, 0}, proto::Type::kPoisoned, Error{Errc::kOk, 0, ""}, news};
}

void tell_all(const Arena& arena, const proto::Region& news, Effects& out) {
    fabricshm::log(fabricshm::LogLevel::kError,
                   "arena %llu (%s): the hardware lost %llu bytes at offset %llu, region %llu",
                   shown(arena.id), arena.name.c_str(), static_cast<unsigned long long>(news.bytes),
                   static_cast<unsigned long long>(news.offset),
                   static_cast<unsigned long long>(news.region_id));
    for (const SessionId session : arena.sessions) out.answers.push_back(news_for(session, news));
}

}  // namespace

Result<proto::Region> Losses::note(SessionId session, const proto::Region& request, Effects& out) {
    FABRIC_TRY(Arena * arena, books_.arena_of(session, ArenaId{request.arena_id}));
    constexpr Bytes kUnit = RegionAllocator::kUnit;
    const std::uint64_t first = request.offset / kUnit * kUnit;
    const std::uint64_t last = fabricshm::round_up(request.offset + request.bytes, kUnit);
    if (last > arena->bytes) return Error{Errc::kInvalid, 0, "lost bytes: outside the arena"};
    proto::Region news = region_at(*arena, first, last - first);
    if (arena->lost.covers(first, last - first)) return news;
    if (arena->lost.all().size() >= kMaxRanges) {
        return refuse_count("lost ranges of the arena", "arena '" + arena->name + "'",
                            "lost ranges", static_cast<int>(kMaxRanges), "");
    }
    FAULT_POINT("lost.before");
    take(*arena, first, last - first);
    FAULT_POINT("lost.after");
    tell_all(*arena, news, out);
    return news;
}

void Losses::lose(Arena& arena, std::uint64_t offset, Bytes bytes, Effects& out) {
    take(arena, offset, bytes);
    tell_all(arena, region_at(arena, offset, bytes), out);
}

void Losses::take(Arena& arena, std::uint64_t offset, Bytes bytes) {
    // A fact, not a grant: it is true whether or not it can be written down.
    journal_.note(LostRecord{raw(arena.id), offset, bytes});
    take_lost(arena, offset, bytes);
}

void Losses::tell(SessionId session, const Arena& arena, Effects& out) {
    for (const auto& [offset, bytes] : arena.lost.all()) {
        out.answers.push_back(news_for(session, region_at(arena, offset, bytes)));
    }
}

void take_lost(Arena& arena, std::uint64_t offset, Bytes bytes) {
    for (const auto& [from, length] : arena.lost.intact(offset, bytes)) {
        arena.space.reserve_free(from, length);
    }
    arena.lost.add(offset, bytes);
}

void release_space(Arena& arena, std::uint64_t offset, Bytes bytes) {
    for (const auto& [from, length] : arena.lost.intact(offset, bytes)) {
        arena.space.release(from, length);
    }
}

bool is_bad(const Arena& arena, RegionId region) {
    const Region& found = arena.regions.at(region);
    return arena.lost.touches(found.offset, found.bytes);
}

}  // namespace fabricd

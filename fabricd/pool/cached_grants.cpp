#include "fabricd/pool/cached_grants.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;

std::optional<OpenRange> CachedGrants::take(SessionId session, const proto::Region& region) {
    const Session* known = books_.find_session(session);
    Arena* const arena = books_.find_arena(ArenaId{region.arena_id});
    const bool is_far = known != nullptr && known->peer.is_remote() && arena != nullptr;
    if (!is_far || !arena->files.cached.take(region.offset, region.bytes)) return std::nullopt;
    return OpenRange{arena->id, arena->files.offset + region.offset, region.bytes};
}

void CachedGrants::put_back(const proto::Region& region) {
    Arena* const arena = books_.find_arena(ArenaId{region.arena_id});
    if (arena != nullptr) arena->files.cached.add(region.offset, region.bytes);
}

}  // namespace fabricd

#include "libfabricshm/client/data_subscription.hpp"

#include <memory>
#include <utility>

#include "libfabricshm/client/published_arena.hpp"

namespace fabricshm {

namespace {

Result<DataArena> subscribe(const SessionOptions& attach, const std::string& name,
                            TimePoint deadline) {
    // A session for each: one that asks twice for an arena gets the same page of pins twice, and
    // two tables of slots over one page would overwrite each other's pins.
    FABRIC_TRY(std::shared_ptr<Session> session, Session::open(attach));
    FABRIC_TRY(std::shared_ptr<SubscribedArena> arena,
               SubscribedArena::subscribe(std::move(session), name, deadline));
    DataArena mapped;
    mapped.base = arena->data();
    mapped.bytes = arena->bytes();
    mapped.pins = &arena->pins();
    mapped.is_held = [held = arena.get()] { return held->is_held(); };
    mapped.owner = std::move(arena);
    return mapped;
}

}  // namespace

SubscribeArena subscriber_of(SessionOptions options) {
    return [attach = std::move(options)](const std::string& name, TimePoint deadline) {
        return subscribe(attach, name, deadline);
    };
}

}  // namespace fabricshm

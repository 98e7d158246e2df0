// The C ABI: groups. Their membership is the daemon's business, their operations are not.

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/cuda_seat.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/collective/long_wait.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

// The waits of one group, in the page of its session.
class GroupScreen final : public WaitScreen {
  public:
    GroupScreen(std::shared_ptr<Arena> arena, std::uint64_t group_id)
        : arena_(std::move(arena)), group_id_(group_id) {}
    int show(int place, const WaitRecord& record) noexcept override {
        WaitRecord named = record;
        named.arena_id = arena_->id();
        named.group_id = group_id_;
        return arena_->session().show_wait(place, named);
    }
    void hide(int place) noexcept override { arena_->session().hide_wait(place); }

  private:
    const std::shared_ptr<Arena> arena_;
    const std::uint64_t group_id_;
};

// Takes the place that the daemon gave; gives it back when that fails.
Result<std::unique_ptr<Group>> enter(const std::shared_ptr<Arena>& arena, const proto::Group& given,
                                     TimePoint deadline) {
    GroupPlace place;
    place.arena = arena->base();
    place.arena_bytes = arena->bytes();
    place.block_offset = given.block_offset;
    place.block_bytes = given.block_bytes;
    place.rank = given.rank;
    place.world = given.world;
    place.group_id = given.group_id;
    place.visibility = arena->policy();
    // Only when buffers outside of the arena are used: the group asks then.
    place.allocate = [arena](Bytes bytes) -> std::byte* {
        const auto block = arena->heap().allocate(bytes);
        return block.ok() ? block.value() : nullptr;
    };
    place.release = [arena](std::byte* block) { arena->heap().release(block); };
    place.meter = std::make_shared<Meter>();
    const std::shared_ptr<Meter> meter = place.meter;
    place.screen = std::make_shared<GroupScreen>(arena, given.group_id);
    place.lost = [arena](Bytes offset) { return arena->report_lost(offset); };
    // The daemon's word on where the block is, checked before anything there is touched.
    const bool inside = arena->holds(given.block_offset, given.block_bytes);
    auto group = inside ? Group::attach(std::move(place), deadline)
                        : Result<std::unique_ptr<Group>>(Error{Errc::kCorrupt, 0, "group block"});
    if (!group.ok()) post_leave(*arena, given.group_id, given.rank);
    if (group.ok()) arena->session().telemetry().add_meter(given.group_id, meter);
    return group;
}

// Asks the daemon (join or shrink) and enters the group it names.
Result<std::unique_ptr<Group>> ask_and_enter(const std::shared_ptr<Arena>& arena,
                                             const proto::Message& request, const char* step,
                                             TimePoint deadline) {
    FABRIC_TRY(const proto::Message reply, arena->call(request, step, deadline, Retry::kHarmless));
    FAULT_POINT("group.answered");
    return enter(arena, reply.group, deadline);
}

int check_join(const fabricshm_arena* arena, const char* name, int rank, int world,
               std::int64_t timeout_ms, fabricshm_group** group) {
    const char* function = "fabricshm_group_join";
    if (arena == nullptr) return refuse("%s: arena is NULL", function);
    if (group == nullptr) return refuse("%s: group is NULL", function);
    if (world < 1 || world > FABRICSHM_WORLD_MAX) {
        return refuse("%s: world is not 1 to %d", function, FABRICSHM_WORLD_MAX);
    }
    // FABRICSHM_ANY_RANK is below 0 and the only one that may be.
    if (rank < FABRICSHM_ANY_RANK || rank >= world) {
        return refuse("%s: rank is not 0 to world - 1, nor FABRICSHM_ANY_RANK", function);
    }
    if (const int code = check_timeout(function, timeout_ms); code != FABRICSHM_OK) return code;
    return check_name(function, name);
}

// A child of fork() that ended its parent's operations would break the group for all ranks.
int check_own(const fabricshm_group& group) {
    if (!group.arena->session().is_foreign()) return FABRICSHM_OK;
    return fail({Errc::kClosed, 0, ""}, "group '%s'", group.name.c_str());
}

// What is on streams is ended, not waited for, as what was started in the group of the host.
int end_on_device(fabricshm_group& group) {
    if (group.on_device == nullptr) return FABRICSHM_OK;
    const auto ended = group.on_device->finish(Duration::zero());
    if (!group.on_device->group->is_stuck()) return FABRICSHM_OK;
    return fail(ended.error(), "group '%s'", group.name.c_str());
}

}  // namespace

// Not waited for: a rank that leaves has nothing to hear any more.
void post_leave(Arena& arena, std::uint64_t group_id, int rank) noexcept {
    proto::Message request = proto::make_request(proto::Type::kGroupLeave, 0);
    request.group.arena_id = arena.id();
    request.group.group_id = group_id;
    request.group.rank = rank;  // a session may hold several ranks, by threads
    arena.session().post(request);
}

Result<std::unique_ptr<Group>> join_group(const std::shared_ptr<Arena>& arena,
                                          const std::string& name, int rank, int world,
                                          TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kGroupJoin, 0);
    (void)proto::set_name(request.group.name, name, "name");  // checked by the caller
    request.group.arena_id = arena->id();
    request.group.rank = rank;
    request.group.world = world;
    return ask_and_enter(arena, request, "join group", deadline);
}

Result<std::unique_ptr<Group>> shrink_group(const std::shared_ptr<Arena>& arena, const Group& group,
                                            TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kGroupShrink, 0);
    request.group.arena_id = arena->id();
    request.group.group_id = group.id();
    request.group.rank = group.rank();
    // A survivor that asks again after a restart of the daemon finds its place in the new group.
    return ask_and_enter(arena, request, "shrink group", deadline);
}

fabricshm_group* adopt(std::unique_ptr<fabricshm_group> handle) {
    const std::lock_guard lock(handle->session->mutex);
    handle->session->groups.insert(handle.get());
    return handle.release();
}

void drop_group(fabricshm_group* handle) noexcept {
    const std::uint64_t id = handle->local().id();
    const int rank = handle->local().rank();
    for (fabricshm_parameters* set : handle->sets) leave_group(*set);
    handle->on_device.reset();
    // Before the daemon is notified: it waits for what was started, and the daemon would give the
    // rank's place away.
    handle->hosts.reset();
    handle->group.reset();
    post_leave(*handle->arena, id, rank);
    delete handle;
}

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_group_join(fabricshm_arena* arena, const char* name, int rank, int world,
                         int64_t timeout_ms, fabricshm_group** group) {
    return guarded("fabricshm_group_join", [&]() -> int {
        if (const int code = check_join(arena, name, rank, world, timeout_ms, group);
            code != FABRICSHM_OK) {
            return code;
        }
        auto handle = std::make_unique<fabricshm_group>();
        auto joined = join_group(arena->arena, name, rank, world,
                                 deadline_of(arena->arena->session(), timeout_ms));
        if (!joined.ok() && joined.error().code == Errc::kTimeout) {
            // Ranks at two daemons each wait in vain, and only this line can say why.
            return fail(joined.error(), "group '%s' of %d ranks, all attached to %s", name, world,
                        arena->arena->session().daemon().c_str());
        }
        if (!joined.ok()) return fail(joined.error(), "group '%s' of %d ranks", name, world);
        handle->session = arena->session;
        handle->arena = arena->arena;
        handle->name = name;
        handle->group = std::move(joined).value();
        *group = adopt(std::move(handle));
        return FABRICSHM_OK;
    });
}

void fabricshm_group_leave(fabricshm_group* group) {
    if (group == nullptr || group->arena->session().is_foreign()) return;
    {
        // Out of the session's set first, so that closing the session cannot leave it a second
        // time.
        const std::lock_guard lock(group->session->mutex);
        group->session->groups.erase(group);
    }
    drop_group(group);
}

int fabricshm_group_abort(fabricshm_group* group) {
    return guarded("fabricshm_group_abort", [&]() -> int {
        if (group == nullptr) return refuse("fabricshm_group_abort: group is NULL");
        if (const int code = check_own(*group); code != FABRICSHM_OK) return code;
        group->hosts != nullptr ? group->hosts->give_up() : group->local().give_up();
        return FABRICSHM_OK;
    });
}

int fabricshm_group_rank(const fabricshm_group* group) {
    if (group == nullptr) return refuse("fabricshm_group_rank: group is NULL");
    return group->rank();
}

int fabricshm_group_world(const fabricshm_group* group) {
    if (group == nullptr) return refuse("fabricshm_group_world: group is NULL");
    return group->world();
}

int fabricshm_group_shrink(fabricshm_group* group, int64_t timeout_ms,
                           fabricshm_group** survivors) {
    return guarded("fabricshm_group_shrink", [&]() -> int {
        if (group == nullptr) return refuse("fabricshm_group_shrink: group is NULL");
        if (survivors == nullptr) return refuse("fabricshm_group_shrink: survivors is NULL");
        if (const int code = check_own(*group); code != FABRICSHM_OK) return code;
        if (const int code = check_timeout("fabricshm_group_shrink", timeout_ms); code != 0) {
            return code;
        }
        if (group->hosts != nullptr) return shrink_hosts(*group, timeout_ms, survivors);
        // The daemon gives the memory of the dead away once all survivors have asked: from here on
        // this rank must not store into it.
        if (const int code = end_on_device(*group); code != FABRICSHM_OK) return code;
        group->group->retire();
        FAULT_POINT("shrink.retired");
        auto handle = std::make_unique<fabricshm_group>();
        auto joined = shrink_group(group->arena, *group->group,
                                   deadline_of(group->arena->session(), timeout_ms));
        if (!joined.ok())
            return fail(joined.error(), "survivors of group '%s'", group->name.c_str());
        handle->session = group->session;
        handle->arena = group->arena;
        handle->name = group->name;
        handle->group = std::move(joined).value();
        if (group->symmetric != nullptr) group->symmetric->settle();
        *survivors = adopt(std::move(handle));
        return FABRICSHM_OK;
    });
}

int fabricshm_group_quiesce(fabricshm_group* group, int64_t timeout_ms) {
    return guarded("fabricshm_group_quiesce", [&]() -> int {
        if (group == nullptr) return refuse("fabricshm_group_quiesce: group is NULL");
        if (const int code = check_own(*group); code != FABRICSHM_OK) return code;
        if (const int code = check_timeout("fabricshm_group_quiesce", timeout_ms); code != 0) {
            return code;
        }
        if (const int code = end_on_device(*group); code != FABRICSHM_OK) return code;
        // What comes over the network lands in the group's own memory, not in the caller's.
        if (group->hosts != nullptr) group->hosts->retire();
        const auto quiet = group->local().quiesce(deadline_of(group->arena->session(), timeout_ms));
        if (!quiet.ok()) return fail(quiet.error(), "group '%s'", group->name.c_str());
        if (group->symmetric != nullptr) group->symmetric->settle();
        return FABRICSHM_OK;
    });
}

}  // extern "C"

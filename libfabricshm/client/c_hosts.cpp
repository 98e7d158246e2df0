// The C ABI: the hosts of the cluster, and groups whose ranks are in several pools.

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/client/hosts.hpp"
#include "libfabricshm/os/identity.hpp"

namespace fabricshm {

namespace {

// Mixes text and number into one: equal for ranks of one pool, different for others but for chance.
std::uint64_t mixed(std::uint64_t number, const std::string& text) noexcept {
    std::uint64_t mixed = 0xcbf29ce484222325 ^ number;
    for (const char letter : text) {
        mixed = (mixed ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
        mixed ^= mixed >> 29;
    }
    return mixed;
}

int check_spec(const fabricshm_arena* arena, const fabricshm_hosts_spec* spec,
               fabricshm_group** group) {
    const char* function = "fabricshm_group_join_hosts";
    if (arena == nullptr) return refuse("%s: arena is NULL", function);
    if (spec == nullptr) return refuse("%s: spec is NULL", function);
    if (group == nullptr) return refuse("%s: group is NULL", function);
    if (const int code = check_struct_size("spec", spec, spec->struct_size, sizeof *spec);
        code != FABRICSHM_OK) {
        return code;
    }
    if (spec->struct_size < sizeof *spec) return refuse("%s: spec->struct_size", function);
    if (spec->exchange == nullptr) return refuse("%s: spec->exchange is NULL", function);
    if (spec->world < 1 || spec->world > FABRICSHM_WORLD_MAX) {
        return refuse("%s: spec->world is not 1 to %d", function, FABRICSHM_WORLD_MAX);
    }
    if (spec->rank < 0 || spec->rank >= spec->world) {
        return refuse("%s: spec->rank is not 0 to world - 1", function);
    }
    if (const int code = check_timeout(function, spec->timeout_ms); code != 0) return code;
    return check_name(function, spec->name);
}

// What the group asks of the daemon and the arena.
net::HostsSpec spec_for(const std::shared_ptr<Arena>& arena, const std::string& name) {
    net::HostsSpec made;
    const HostIdentity host = own_host();
    made.host = host.name;
    made.pool = mixed(host.boot, memory_at(arena->base()));
    made.join = [arena, name](int rank, int world, TimePoint deadline) {
        return join_group(arena, name, rank, world, deadline);
    };
    made.allocate = [arena](Bytes bytes) -> std::byte* {
        const auto block = arena->heap().allocate(bytes);
        return block.ok() ? block.value() : nullptr;
    };
    made.release = [arena](std::byte* block) { arena->heap().release(block); };
    made.leave = [arena](std::uint64_t id, int rank) { post_leave(*arena, id, rank); };
    made.coherent = arena->policy() == nullptr;
    return made;
}

}  // namespace

int check_one_pool(const char* function, const fabricshm_group& group) {
    if (group.hosts == nullptr) return FABRICSHM_OK;
    return fail(
        explain({Errc::kUnsupported, 0, "group"}, "%s: not for groups of several hosts", function),
        "group '%s'", group.name.c_str());
}

namespace {

// Where the daemon of this rank is in its cluster, and which other hosts are gone there. Without a
// cluster, or a daemon that answers, ranks hear of a host that is cut off by their deadlines.
void watch_hosts(const std::shared_ptr<Arena>& arena, TimePoint deadline, bool joins,
                 net::HostsSpec& spec) {
    const auto watch = std::make_shared<HostWatch>(arena->session());
    const auto place = joins ? watch->await_place(deadline) : watch->own_place(deadline);
    // What goes on after a shrink is no new group.
    if (joins) spec.admit = [watch](TimePoint until) { return watch->await_admission(until); };
    if (!place.ok() || place->name.empty()) return;
    spec.place = place->name;
    spec.incarnation = place->incarnation;
    spec.holds_place = [arena, watch, own = *place](TimePoint until) {
        return watch->holds(own.name, own.incarnation, until);
    };
    spec.settle = [arena, watch](const net::GroupId& group, const std::vector<int>& ranks,
                                 TimePoint until) { return watch->settle(group, ranks, until); };
    // The arena keeps the session.
    spec.is_gone = [arena, watch](const std::string& name, std::uint64_t incarnation) {
        return watch->gone(name, incarnation, Clock::now());
    };
}

// What joined: one in several pools, or, when all of its ranks are here, the local group.
int keep(std::unique_ptr<fabricshm_group> handle, std::unique_ptr<net::HostsGroup> joined,
         fabricshm_group** group) {
    handle->hosts = std::move(joined);
    if (handle->hosts->links() == nullptr) {
        handle->group = handle->hosts->take_local();
        handle->hosts.reset();
    }
    *group = adopt(std::move(handle));
    return FABRICSHM_OK;
}

}  // namespace

namespace {

static_assert(FABRICSHM_NAME_MAX == proto::kNameBytes);
static_assert(int{FABRICSHM_HOST_FENCED} == static_cast<int>(proto::HostState::kFenced));
static_assert(int{FABRICSHM_FENCE_BY_OTHER} == static_cast<int>(proto::FenceStage::kOther));

// As many of them as there is room for.
void show_hosts(const KnownHosts& known, fabricshm_host* hosts, std::size_t capacity) {
    const std::string* before = nullptr;
    for (std::size_t i = 0; i < known.hosts.size() && i < capacity; ++i) {
        const KnownHost& host = known.hosts[i];
        const bool is_newest = before == nullptr || *before != host.name;
        before = &host.name;
        fabricshm_host& shown = hosts[i] = {};
        host.name.copy(shown.name, sizeof shown.name - 1);
        shown.incarnation = host.incarnation;
        const bool is_listed = host.state == proto::HostState::kListed;
        shown.state_ms = is_listed ? 0 : static_cast<std::int64_t>(host.state_ms);
        shown.state = static_cast<std::int32_t>(host.state);
        shown.fence = static_cast<std::int32_t>(host.fence);
        if (host.is_self) shown.flags |= FABRICSHM_HOST_SELF;
        if (is_newest) shown.flags |= FABRICSHM_HOST_NEWEST;
    }
}

}  // namespace

int shrink_hosts(fabricshm_group& group, std::int64_t timeout_ms, fabricshm_group** survivors) {
    net::HostsSpec wanted = spec_for(group.arena, group.name);
    net::HostsGroup& old = *group.hosts;
    wanted.join = [&old, arena = group.arena](int, int, TimePoint deadline) {
        return shrink_group(arena, old.local(), deadline);
    };
    const TimePoint deadline = deadline_of(group.arena->session(), timeout_ms);
    watch_hosts(group.arena, deadline, false, wanted);
    auto handle = std::make_unique<fabricshm_group>();
    handle->session = group.session;
    handle->arena = group.arena;
    handle->name = group.name;
    auto made = old.shrink(std::move(wanted), deadline);
    if (!made.ok()) return fail(made.error(), "survivors of group '%s'", group.name.c_str());
    return keep(std::move(handle), std::move(made).value(), survivors);
}

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_session_hosts(fabricshm_session* session, fabricshm_host* hosts, int32_t capacity,
                            fabricshm_cluster* cluster) {
    return guarded("fabricshm_session_hosts", [&]() -> int {
        const char* function = "fabricshm_session_hosts";
        if (session == nullptr) return refuse("%s: session is NULL", function);
        if (cluster == nullptr) return refuse("%s: cluster is NULL", function);
        if (capacity < 0) return refuse("%s: capacity is negative", function);
        if (capacity > 0 && hosts == nullptr) return refuse("%s: hosts is NULL", function);
        if (const int code =
                check_struct_size("cluster", cluster, cluster->struct_size, sizeof *cluster);
            code != FABRICSHM_OK) {
            return code;
        }
        if (cluster->struct_size < sizeof *cluster) {
            return refuse("%s: cluster->struct_size", function);
        }
        KnownHosts known;
        const auto asked =
            ask_hosts(*session->session, known, session->session->default_deadline());
        if (!asked.ok()) return fail(asked.error(), "hosts of the cluster");
        show_hosts(known, hosts, static_cast<std::size_t>(capacity));
        cluster->total = static_cast<std::int32_t>(known.hosts.size());
        cluster->admits = known.admits ? 1 : 0;
        return FABRICSHM_OK;
    });
}

int fabricshm_group_join_hosts(fabricshm_arena* arena, const fabricshm_hosts_spec* spec,
                               fabricshm_group** group) {
    return guarded("fabricshm_group_join_hosts", [&]() -> int {
        if (const int code = check_spec(arena, spec, group); code != FABRICSHM_OK) return code;
        net::HostsSpec wanted = spec_for(arena->arena, spec->name);
        wanted.rank = spec->rank;
        wanted.world = spec->world;
        if (spec->trusted != nullptr) wanted.trusted = spec->trusted;
        wanted.exchange = [spec](const void* mine, std::size_t bytes, void* all) {
            return spec->exchange(spec->context, mine, bytes, all) == 0;
        };
        const TimePoint deadline = deadline_of(arena->arena->session(), spec->timeout_ms);
        watch_hosts(arena->arena, deadline, true, wanted);
        auto handle = std::make_unique<fabricshm_group>();
        auto joined = net::HostsGroup::join(std::move(wanted), deadline);
        if (!joined.ok()) {
            return fail(joined.error(), "group '%s' of %d ranks", spec->name, spec->world);
        }
        handle->session = arena->session;
        handle->arena = arena->arena;
        handle->name = spec->name;
        return keep(std::move(handle), std::move(joined).value(), group);
    });
}

int fabricshm_group_hosts(const fabricshm_group* group) {
    if (group == nullptr) return refuse("fabricshm_group_hosts: group is NULL");
    return group->hosts == nullptr ? 1 : group->hosts->plan().hosts();
}

int fabricshm_group_host_of(const fabricshm_group* group, int rank) {
    if (group == nullptr) return refuse("fabricshm_group_host_of: group is NULL");
    if (rank < 0 || rank >= group->world()) return refuse("fabricshm_group_host_of: rank");
    return group->hosts == nullptr ? 0 : group->hosts->plan().host_of(rank);
}

int fabricshm_group_host_lost(fabricshm_group* group, int host) {
    return guarded("fabricshm_group_host_lost", [&]() -> int {
        if (group == nullptr) return refuse("fabricshm_group_host_lost: group is NULL");
        const bool other = group->hosts != nullptr && host >= 0 &&
                           host < group->hosts->plan().hosts() && host != group->hosts->own_host();
        if (!other) return refuse("fabricshm_group_host_lost: host is no other host of the group");
        group->hosts->on_host_lost(host);
        return FABRICSHM_OK;
    });
}

}  // extern "C"

#include "fabricd/server/admin_codec.hpp"

#include <algorithm>

#include "fabricd/pool/view_fields.hpp"

namespace fabricd {

namespace {

// Texts come from clients, and go to terminals.
std::string sent(const std::string& text) {
    return printable(text);
}
template <typename Number>
Number sent(Number value) {
    return value;
}
template <ViewState State>
std::string sent(State state) {
    return std::string(name_of(state));
}

template <typename Field, typename Value>
void receive(Field& field, const Value& value) {
    field = value;
}
template <ViewState State>
void receive(State& field, const std::string& name) {
    field = state_named<State>(name);
}

}  // namespace

std::string printable(const std::string& text) {
    std::string result = text;
    std::replace_if(
        result.begin(), result.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
    return result;
}

// Each view by the list of its fields in view_fields.hpp.
// clang-format off
#define FABRIC_PACK(name) message.set_##name(sent(view.name));
#define FABRIC_PACK_LIST(name) message.mutable_##name()->Add(view.name.begin(), view.name.end());
#define FABRIC_PACK_ALL(fields) fields(FABRIC_PACK, FABRIC_PACK_LIST)

#define FABRIC_UNPACK(name) receive(view.name, message.name());
#define FABRIC_UNPACK_LIST(name) view.name.assign(message.name().begin(), message.name().end());
#define FABRIC_UNPACK_ALL(fields) fields(FABRIC_UNPACK, FABRIC_UNPACK_LIST)

#define FABRIC_CODEC(View, Message, fields)            \
    void pack(const View& view, Message& message) {    \
        FABRIC_PACK_ALL(fields)                        \
    }                                                  \
    View unpack(const Message& message) {              \
        View view;                                     \
        FABRIC_UNPACK_ALL(fields)                      \
        return view;                                   \
    }
// clang-format on

namespace {

FABRIC_CODEC(DeviceEfficiency, admin::v1::Efficiency, FABRIC_EFFICIENCY_FIELDS)
FABRIC_CODEC(LateRank, admin::v1::LateRank, FABRIC_LATE_RANK_FIELDS)

}  // namespace

FABRIC_CODEC(PoolView, admin::v1::Pool, FABRIC_POOL_FIELDS)
FABRIC_CODEC(ArenaView, admin::v1::Arena, FABRIC_ARENA_FIELDS)
FABRIC_CODEC(CacheView, admin::v1::Cache, FABRIC_CACHE_FIELDS)
FABRIC_CODEC(RegionView, admin::v1::Region, FABRIC_REGION_FIELDS)
FABRIC_CODEC(SessionView, admin::v1::Session, FABRIC_SESSION_FIELDS)
FABRIC_CODEC(GroupView, admin::v1::Group, FABRIC_GROUP_FIELDS)
FABRIC_CODEC(ShardView, admin::v1::Shard, FABRIC_SHARD_FIELDS)

void pack(const DeviceView& of, admin::v1::Device& message) {
    {
        const DeviceSpec& view = of.spec;
        FABRIC_PACK_ALL(FABRIC_DEVICE_SPEC_FIELDS)
    }
    {
        const DeviceView& view = of;
        FABRIC_PACK_ALL(FABRIC_DEVICE_FIELDS)
    }
    pack(of.spec.efficiency, *message.mutable_efficiency());
    if (of.spec.numa_node >= 0) message.set_numa_node(of.spec.numa_node);
}

DeviceView unpack(const admin::v1::Device& message) {
    DeviceView of;
    {
        DeviceSpec& view = of.spec;
        FABRIC_UNPACK_ALL(FABRIC_DEVICE_SPEC_FIELDS)
    }
    {
        DeviceView& view = of;
        FABRIC_UNPACK_ALL(FABRIC_DEVICE_FIELDS)
    }
    of.spec.efficiency = unpack(message.efficiency());
    if (message.has_numa_node()) of.spec.numa_node = message.numa_node();
    return of;
}

void pack(const WaitingView& view, admin::v1::Waiting& message) {
    FABRIC_PACK_ALL(FABRIC_WAITING_FIELDS)
    for (const LateRank& late : view.late) pack(late, *message.add_late());
}

WaitingView unpack(const admin::v1::Waiting& message) {
    WaitingView view;
    FABRIC_UNPACK_ALL(FABRIC_WAITING_FIELDS)
    for (const auto& late : message.late()) view.late.push_back(unpack(late));
    return view;
}

void pack_status(const Snapshot& snapshot, const DaemonFacts& facts,
                 admin::v1::StatusReply& message) {
    message.set_version(facts.version);
    message.set_pid(facts.pid);
    message.set_daemon_epoch(snapshot.daemon_epoch);
    message.set_uptime_ms(snapshot.uptime_ms);
    message.set_draining(snapshot.draining);
    for (const std::string& alarm : snapshot.alarms) message.add_alarms(alarm);
    // Those of the journal that have not come back yet are sessions, too.
    message.set_sessions(snapshot.totals.sessions);
    message.set_sessions_connected(snapshot.totals.sessions_connected);
    message.set_arenas(snapshot.totals.arenas);
    message.set_regions(snapshot.totals.regions);
    message.set_groups(snapshot.totals.groups);
    pack(snapshot.pool, *message.mutable_pool());
    for (const CacheView& cache : snapshot.caches) pack(cache, *message.add_caches());
}

void pack_watch(const Snapshot& snapshot, const DaemonFacts& facts, bool with_regions,
                admin::v1::WatchReply& message) {
    pack_status(snapshot, facts, *message.mutable_status());
    for (const auto& arena : snapshot.arenas) pack(arena, *message.add_arenas());
    for (const auto& session : snapshot.sessions) pack(session, *message.add_sessions());
    for (const auto& group : snapshot.groups) pack(group, *message.add_groups());
    for (const auto& device : snapshot.devices) pack(device, *message.add_devices());
    // Regions may be a million, so they are sent to programs that show them.
    if (!with_regions) return;
    for (const auto& region : snapshot.regions) pack(region, *message.add_regions());
}

}  // namespace fabricd

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/telemetry_view.hpp"
#include "fabricd/ctl/views.hpp"

namespace fabricd {

namespace {

// The fields of docs/fabricctl.md. Scripts read them: they are added to, never renamed.
Json to_json(const PoolView& pool) {
    return {{"backend", pool.backend},
            {"description", pool.description},
            {"capacity_bytes", pool.capacity_bytes},
            {"used_bytes", pool.used_bytes},
            {"machine", pool.machine}};
}

Json to_json(const ArenaView& arena) {
    return {{"id", arena.id},
            {"name", arena.name},
            {"uid", arena.uid},
            {"bytes", arena.bytes},
            {"bytes_committed", arena.bytes_committed},
            {"bytes_used", arena.bytes_used},
            {"bytes_quarantined", arena.bytes_quarantined},
            {"sessions", arena.sessions}};
}

// The offset is in the arena, not in any process: mappings differ, and addresses mean nothing in
// other processes.
Json to_json(const RegionView& region) {
    return {{"arena_id", region.arena_id},
            {"id", region.id},
            {"generation", region.generation},
            {"offset", region.offset},
            {"bytes", region.bytes},
            {"owner_session", region.owner_session},
            {"tensor_name", region.tensor_name},
            {"state", region.state}};
}

Json to_json(const SessionView& session) {
    return {{"id", session.id},
            {"pid", session.pid},
            {"uid", session.uid},
            {"label", session.label},
            {"age_ms", session.age_ms},
            {"bytes_owned", session.bytes_owned},
            {"connected", session.connected},
            {"device", session.device}};
}

// dead_ranks stays a list when it is empty, so that readers need no second case.
Json to_json(const GroupView& group) {
    return {{"arena_id", group.arena_id}, {"id", group.id},
            {"name", group.name},         {"epoch", group.epoch},
            {"world", group.world},       {"joined", group.joined},
            {"state", group.state},       {"dead_ranks", group.dead_ranks}};
}

// Flat, though a view holds a spec: whether a number comes from the device file or from the
// daemon's records does not matter here.
Json to_json(const DeviceView& device) {
    const DeviceSpec& spec = device.spec;
    return {{"name", spec.name},
            {"kind", spec.kind},
            {"gflops", spec.gflops},
            {"vgpu_share_percent", spec.share_percent},
            {"memory_bytes", spec.memory_bytes},
            {"vgpu_memory_bytes", spec.quota_bytes},
            {"link_gbytes_per_s", spec.link_gbytes_per_s},
            {"link_latency_ns", spec.link_latency_ns},
            {"numa_node", spec.numa_node},
            {"efficiency",
             {{"convolution", spec.efficiency.convolution},
              {"fully_connected", spec.efficiency.fully_connected},
              {"activation", spec.efficiency.activation},
              {"other", spec.efficiency.other}}},
            {"configured", device.configured},
            {"sessions", device.sessions},
            {"bytes_used", device.bytes_used},
            {"quota_target_bytes", device.quota_target_bytes},
            {"quota_left_ms", device.quota_left_ms},
            {"bytes_denied", device.bytes_denied},
            {"faults", device.faults}};
}

Json to_json(const ShardView& shard) {
    return {{"name", shard.name},       {"arena_id", shard.arena_id},
            {"id", shard.id},           {"owner_session", shard.owner_session},
            {"bytes", shard.bytes},     {"home_arena", shard.home_arena},
            {"offset", shard.offset},   {"home_device", shard.home_device},
            {"readers", shard.readers}, {"moves", shard.moves},
            {"state", shard.state},     {"moved_bytes", shard.moved_bytes}};
}

// 0 for what is not known: a rank that has left or died has no process to inspect.
Json to_json(const LateRank& late) {
    return {{"rank", late.rank}, {"session", late.session_id}, {"pid", late.pid}};
}

// "waiting_ranks" and not "waiting", which is the name of the whole list. All ranks one by one: a
// program should not have to know how ranges are written for people.
Json to_json(const WaitingView& row) {
    Json late = Json::array();
    for (const LateRank& rank : row.late) late.push_back(to_json(rank));
    return {{"arena_id", row.arena_id},     {"arena", row.arena},
            {"group_id", row.group_id},     {"group", row.group},
            {"world", row.world},           {"operation", row.operation},
            {"bytes", row.bytes},           {"waited_ms", row.waited_ms},
            {"waiting_ranks", row.waiting}, {"late", late},
            {"late_count", row.late_count}};
}

// daemon_epoch rises with each start: a program that polls notices a restart by it.
Json to_json(const StatusView& status) {
    return {{"version", status.version},
            {"pid", status.pid},
            {"daemon_epoch", status.daemon_epoch},
            {"uptime_ms", status.uptime_ms},
            {"draining", status.draining},
            {"sessions", status.sessions},
            {"sessions_connected", status.sessions_connected},
            {"arenas", status.arenas},
            {"regions", status.regions},
            {"groups", status.groups},
            {"pool", to_json(status.pool)},
            {"alarms", status.alarms}};
}

template <typename Views>
Json list(const Views& views) {
    Json result = Json::array();
    for (const auto& view : views) result.push_back(to_json(view));
    return result;
}

}  // namespace

// One object whose key is the view's name, so that a line in a log names its view.
std::string json_view(const Picture& picture, View view) {
    switch (view) {
        case View::kStatus:
            return one_line({{"status", to_json(picture.status)}});
        case View::kPools:
            return one_line({{"pools", list(picture.pools)}});
        case View::kArenas:
            return one_line({{"arenas", list(picture.arenas)}});
        case View::kRegions:
            return one_line({{"regions", list(picture.regions)}});
        case View::kSessions:
            return one_line({{"sessions", list(picture.sessions)}});
        case View::kGroups:
            return one_line({{"groups", list(picture.groups)}});
        case View::kDevices:
            return one_line({{"devices", list(picture.devices)}});
        case View::kShards:
            return one_line({{"shards", list(picture.shards)}});
        case View::kWaiting:
            return one_line({{"waiting", list(picture.waiting)}});
        case View::kTop:
            return one_line({{"status", to_json(picture.status)},
                             {"arenas", list(picture.arenas)},
                             {"sessions", list(picture.sessions)},
                             {"groups", list(picture.groups)},
                             {"telemetry", telemetry_json(picture.telemetry)}});
    }
    // Not reached: the switch has all views, and the compiler warns when one is missing.
    return "{}";
}

}  // namespace fabricd

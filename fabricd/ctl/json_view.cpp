#include "fabricd/ctl/json_view.hpp"

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/row_text.hpp"
#include "fabricd/ctl/telemetry_view.hpp"
#include "fabricd/ctl/views.hpp"
#include "fabricd/pool/view_fields.hpp"

namespace fabricd {

namespace {

// States by name.
template <typename Value>
const Value& shown(const Value& value) {
    return value;
}
template <ViewState State>
std::string_view shown(const State& state) {
    return name_of(state);
}

// The fields of docs/fabricctl.md, by the lists in view_fields.hpp. Scripts read them: they are
// added to, never renamed. Offsets are in the arena, not in any process: mappings differ.
#define FABRIC_TO_JSON(name) {#name, shown(view.name)},
#define FABRIC_VIEW_JSON(View, fields)                                 \
    Json to_json(const View& view) {                                   \
        return Json::object({fields(FABRIC_TO_JSON, FABRIC_TO_JSON)}); \
    }
FABRIC_VIEW_JSON(PoolView, FABRIC_POOL_FIELDS)
FABRIC_VIEW_JSON(CacheView, FABRIC_CACHE_FIELDS)
FABRIC_VIEW_JSON(RegionView, FABRIC_REGION_FIELDS)
FABRIC_VIEW_JSON(SessionView, FABRIC_SESSION_FIELDS)
// dead_ranks stays a list when it is empty, so that readers need no second case.
FABRIC_VIEW_JSON(GroupView, FABRIC_GROUP_FIELDS)
FABRIC_VIEW_JSON(ShardView, FABRIC_SHARD_FIELDS)
FABRIC_VIEW_JSON(DeviceEfficiency, FABRIC_EFFICIENCY_FIELDS)

// In its place: people read these lines, too.
Json renamed(const Json& json, const std::string& from, const char* to) {
    Json result = Json::object();
    for (const auto& [key, value] : json.items()) result[key == from ? to : key] = value;
    return result;
}

// Which sessions have it open is for `inspect`, which names them.
Json to_json(const ArenaView& view) {
    Json json = Json::object({FABRIC_ARENA_FIELDS(FABRIC_TO_JSON, FABRIC_TO_JSON)});
    json.erase("session_ids");
    return json;
}

// Flat, though a view holds a spec: whether a number comes from the device file or from the
// daemon's accounting is the daemon's matter. What is a share of the device is named as in the
// device file.
Json to_json(const DeviceView& device) {
    Json json;
    {
        const DeviceSpec& view = device.spec;
        json = Json::object({FABRIC_DEVICE_SPEC_FIELDS(FABRIC_TO_JSON, FABRIC_TO_JSON)});
    }
    {
        const DeviceView& view = device;
        json.update(Json::object({FABRIC_DEVICE_FIELDS(FABRIC_TO_JSON, FABRIC_TO_JSON)}));
    }
    json = renamed(json, "share_percent", "vgpu_share_percent");
    json = renamed(json, "quota_bytes", "vgpu_memory_bytes");
    json["numa_node"] = device.spec.numa_node;
    json["efficiency"] = to_json(device.spec.efficiency);
    return json;
}

// 0 for what is not known: a rank that has left or died has no process to inspect.
Json to_json(const LateRank& view) {
    Json json = Json::object({FABRIC_LATE_RANK_FIELDS(FABRIC_TO_JSON, FABRIC_TO_JSON)});
    return renamed(json, "session_id", "session");
}

// "waiting_ranks" and not "waiting", which is the name of the whole list. All ranks one by one: a
// program should not have to know how ranges are written for people.
Json to_json(const WaitingView& view) {
    Json json = Json::object({FABRIC_WAITING_FIELDS(FABRIC_TO_JSON, FABRIC_TO_JSON)});
    json = renamed(json, "waiting", "waiting_ranks");
    json["late"] = Json::array();
    for (const LateRank& rank : view.late) json["late"].push_back(to_json(rank));
    return json;
}

template <typename Views>
Json list(const Views& views) {
    Json result = Json::array();
    for (const auto& view : views) result.push_back(to_json(view));
    return result;
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
            {"alarms", status.alarms},
            {"caches", list(status.caches)}};
}

}  // namespace

template <typename Item>
Json row_json(const Item& item) {
    return to_json(item);
}
template Json row_json(const PoolView&);
template Json row_json(const CacheView&);
template Json row_json(const ArenaView&);
template Json row_json(const SessionView&);
template Json row_json(const GroupView&);
template Json row_json(const DeviceView&);
template Json row_json(const ShardView&);
template Json row_json(const WaitingView&);
template Json row_json(const StatusView&);

#define FABRIC_TO_TEXT(name) row(#name, shown(view.name));
#define FABRIC_NO_TEXT(name)
#define FABRIC_VIEW_TEXT(View, fields, list)               \
    void append_row(std::string& text, const View& view) { \
        RowText row(text);                                 \
        fields(FABRIC_TO_TEXT, list)                       \
    }
FABRIC_VIEW_TEXT(ArenaView, FABRIC_ARENA_FIELDS, FABRIC_NO_TEXT)
FABRIC_VIEW_TEXT(SessionView, FABRIC_SESSION_FIELDS, FABRIC_TO_TEXT)
FABRIC_VIEW_TEXT(GroupView, FABRIC_GROUP_FIELDS, FABRIC_TO_TEXT)
FABRIC_VIEW_TEXT(ShardView, FABRIC_SHARD_FIELDS, FABRIC_TO_TEXT)

// With names of its own, and few.
void append_row(std::string& text, const WaitingView& waiting) {
    text += one_line(to_json(waiting));
}

// One object whose key is the view's name, so that a line in a log names its view.
Json json_of(const Picture& picture, View view) {
    switch (view) {
        case View::kStatus:
            return {{"status", to_json(picture.status)}};
        case View::kPools:
            return {{"pools", list(picture.pools)}};
        case View::kArenas:
            return {{"arenas", list(picture.arenas)}};
        case View::kRegions:
            return {{"regions", list(picture.regions)}};
        case View::kSessions:
            return {{"sessions", list(picture.sessions)}};
        case View::kGroups:
            return {{"groups", list(picture.groups)}};
        case View::kDevices:
            return {{"devices", list(picture.devices)}};
        case View::kShards:
            return {{"shards", list(picture.shards)}};
        case View::kWaiting:
            return {{"waiting", list(picture.waiting)}};
        case View::kTop:
            return {{"status", to_json(picture.status)},
                    {"arenas", list(picture.arenas)},
                    {"sessions", list(picture.sessions)},
                    {"groups", list(picture.groups)},
                    {"telemetry", telemetry_json(picture.telemetry)}};
    }
    // Not reached: the switch has all views, and the compiler warns when one is missing.
    return Json::object();
}

std::string json_view(const Picture& picture, View view) {
    return one_line(json_of(picture, view));
}

}  // namespace fabricd

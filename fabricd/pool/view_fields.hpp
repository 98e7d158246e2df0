// The fields of the views of snapshot.hpp, one row each: what the admin API carries, what fabricctl
// prints as JSON and what tests compare. A field that is added to a view without a row does not
// compile, and one row is all that it takes: admin.proto has the field under the same name.

#pragma once

#include <cstddef>

#include "fabricd/pool/snapshot.hpp"

// F(name): a number, a text or a flag. L(name): a list of numbers.
// clang-format off
#define FABRIC_POOL_FIELDS(F, L) \
    F(backend) F(description) F(capacity_bytes) F(used_bytes) F(machine)
#define FABRIC_ARENA_FIELDS(F, L) \
    F(id) F(name) F(uid) F(bytes) F(bytes_committed) F(bytes_used) F(bytes_quarantined) \
    F(sessions) L(session_ids)
#define FABRIC_CACHE_FIELDS(F, L) \
    F(arena_id) F(name) F(bytes) F(bytes_committed) F(quota_bytes) F(target_bytes) \
    F(floor_bytes) F(bytes_used) F(readers) F(hits) F(misses) F(stall_ns) F(bytes_refetched) \
    F(bytes_refetched_near)
#define FABRIC_REGION_FIELDS(F, L) \
    F(arena_id) F(id) F(generation) F(offset) F(bytes) F(owner_session) F(tensor_name) F(state)
#define FABRIC_SESSION_FIELDS(F, L) \
    F(id) F(pid) F(uid) F(label) F(age_ms) F(bytes_owned) F(connected) F(device) F(host) \
    F(given_up)
#define FABRIC_GROUP_FIELDS(F, L) \
    F(arena_id) F(id) F(name) F(epoch) F(world) F(joined) F(state) L(dead_ranks)
#define FABRIC_SHARD_FIELDS(F, L) \
    F(name) F(arena_id) F(id) F(owner_session) F(bytes) F(home_arena) F(offset) F(home_device) \
    F(readers) F(moves) F(state) F(moved_bytes)
#define FABRIC_WAITING_FIELDS(F, L) \
    F(arena_id) F(arena) F(group_id) F(group) F(world) F(operation) F(bytes) F(waited_ms) \
    L(waiting) F(late_count)
#define FABRIC_LATE_RANK_FIELDS(F, L) \
    F(rank) F(session_id) F(pid)
// Of a device what stands in the device file, and what the daemon adds.
#define FABRIC_DEVICE_SPEC_FIELDS(F, L) \
    F(name) F(kind) F(gflops) F(share_percent) F(memory_bytes) F(quota_bytes) \
    F(link_gbytes_per_s) F(link_latency_ns)
#define FABRIC_DEVICE_FIELDS(F, L) \
    F(configured) F(sessions) F(bytes_used) F(quota_target_bytes) F(quota_left_ms) \
    F(bytes_denied) F(faults)
#define FABRIC_EFFICIENCY_FIELDS(F, L) \
    F(convolution) F(fully_connected) F(activation) F(other)
// clang-format on

namespace fabricd::view_fields {

// Of an aggregate: as many initialisers as it takes.
struct AnyValue {
    template <typename T>
    operator T() const;  // NOLINT: implicit is what it is for
};
template <typename Aggregate, typename... Values>
consteval std::size_t fields_of() {
    if constexpr (requires { Aggregate{Values{}..., AnyValue{}}; }) {
        return fields_of<Aggregate, Values..., AnyValue>();
    } else {
        return sizeof...(Values);
    }
}

#define FABRIC_COUNT_ONE(name) +1
#define FABRIC_ROWS(list) (0 list(FABRIC_COUNT_ONE, FABRIC_COUNT_ONE))
static_assert(fields_of<PoolView>() == FABRIC_ROWS(FABRIC_POOL_FIELDS));
static_assert(fields_of<ArenaView>() == FABRIC_ROWS(FABRIC_ARENA_FIELDS));
static_assert(fields_of<CacheView>() == FABRIC_ROWS(FABRIC_CACHE_FIELDS));
static_assert(fields_of<RegionView>() == FABRIC_ROWS(FABRIC_REGION_FIELDS));
static_assert(fields_of<SessionView>() == FABRIC_ROWS(FABRIC_SESSION_FIELDS));
static_assert(fields_of<GroupView>() == FABRIC_ROWS(FABRIC_GROUP_FIELDS));
static_assert(fields_of<ShardView>() == FABRIC_ROWS(FABRIC_SHARD_FIELDS));
// And the late ranks themselves.
static_assert(fields_of<WaitingView>() == FABRIC_ROWS(FABRIC_WAITING_FIELDS) + 1);
static_assert(fields_of<LateRank>() == FABRIC_ROWS(FABRIC_LATE_RANK_FIELDS));
static_assert(fields_of<DeviceEfficiency>() == FABRIC_ROWS(FABRIC_EFFICIENCY_FIELDS));
// And the spec; the arenas' room, of which the control loop alone makes something, is not shown.
static_assert(fields_of<DeviceView>() == FABRIC_ROWS(FABRIC_DEVICE_FIELDS) + 2);
#undef FABRIC_ROWS
#undef FABRIC_COUNT_ONE

}  // namespace fabricd::view_fields

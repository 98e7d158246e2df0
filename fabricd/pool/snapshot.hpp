// What the daemon holds at one moment, as plain data: for the admin API, telemetry and tests.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/pool/states.hpp"

namespace fabricd {

struct SessionView {
    std::uint64_t id = 0;
    std::int32_t pid = 0;
    std::uint32_t uid = 0;
    std::string label;
    std::int64_t age_ms = 0;
    std::uint64_t bytes_owned = 0;  // of regions
    bool connected = false;         // false: known from the journal, not yet back
    std::string device;             // "": none
    std::string host;               // "": this one
    bool given_up = false;          // its host is silent: what it holds is kept from all
};

/// The share of its speed that a device reaches on one kind of layer.
struct DeviceEfficiency {
    double convolution = 1.0;
    double fully_connected = 1.0;
    double activation = 1.0;
    double other = 1.0;
};

/// One device of the device file. The quota is what its vGPU slice may hold in the pool.
struct DeviceSpec {
    std::string name;
    std::string kind;                   // "gpu", "fpga", ...
    double gflops = 0.0;                // 10^9 operations per second of the whole device
    std::uint32_t share_percent = 100;  // of the speed, for the slice
    std::uint64_t memory_bytes = 0;
    std::uint64_t quota_bytes = 0;   // at most memory_bytes
    double link_gbytes_per_s = 0.0;  // 10^9 bytes per second between the device and the pool
    std::int64_t link_latency_ns = 0;
    DeviceEfficiency efficiency;
    std::string gpu = {};             // the CUDA GPU: "GPU-...", "MIG-..." or an ordinal; "": none
    std::uint64_t reserve_bytes = 0;  // of the GPU's memory, never given to its vGPUs
    std::uint64_t context_bytes = 0;  // counted for each CUDA context; 0: what NVML sees
    std::vector<std::uint32_t> allow_uids = {};  // users of the vGPU; none: all that may attach
    // What the control loop never keeps from it when it needs it; 0: nothing said.
    std::uint64_t guaranteed_bytes = 0;
    double priority = 1.0;      // against the other devices, any scale
    std::int64_t wait_ms = -1;  // that an allocation on its GPU waits for room; -1: nothing said
    int numa_node = -1;         // of the machine, whose memory is next to it; -1: nothing said
};

/// A quota that can be changed while it is in use.
struct QuotaState {
    std::uint64_t quota_bytes = 0;   // in force
    std::uint64_t target_bytes = 0;  // announced; equal to the quota when nothing is waited for
    std::uint64_t used_bytes = 0;
    std::int64_t left_ms = 0;  // until the quota is cut to the target, or to what is used then
};

/// What is asked for of a quota: by people, or by the control loop.
struct QuotaOrder {
    std::string subject;  // a device of the device file, or "user:UID"
    std::uint64_t bytes = 0;
    std::int64_t grace_ms = 0;
};

/// One of the quotas that change together: what one gives another one takes.
struct QuotaShift {
    std::string device;              // or "cache:ARENA"
    std::uint64_t before_bytes = 0;  // what it was when that was decided
    std::uint64_t after_bytes = 0;
};

/// What is asked for of a shard, likewise.
struct MoveOrder {
    std::string shard;                   // "ARENA/NAME"
    std::string target;                  // "here", "arena:NAME", "device:NAME" or "node:N"
    std::uint64_t bytes_per_second = 0;  // 0: the daemon's limit
};

struct DeviceView {
    DeviceSpec spec;
    bool configured = false;  // false: no longer in the device file, but sessions compute on it
    std::uint32_t sessions = 0;
    std::uint64_t bytes_used = 0;          // of the regions of its sessions
    std::uint64_t quota_target_bytes = 0;  // what the quota shrinks to; else as spec.quota_bytes
    std::int64_t quota_left_ms = 0;
    std::uint64_t bytes_denied = 0;  // asked for and refused by the quota so far
    // What the arenas of its sessions could still hold, each of them once; only of a device that
    // was refused something.
    std::uint64_t arena_room_bytes = 0;
    std::string faults = {};  // "ecc,stopped": what its GPU says is wrong with it
};

struct ArenaView {
    std::uint64_t id = 0;
    std::string name;
    std::uint32_t uid = 0;
    std::uint64_t bytes = 0;
    std::uint64_t bytes_used = 0;         // by regions
    std::uint64_t bytes_quarantined = 0;  // of dead sessions, until their groups are gone
    std::uint32_t sessions = 0;
    std::uint64_t bytes_committed = 0;            // what it has taken from the pool so far
    std::vector<std::uint64_t> session_ids = {};  // that have it open
};

struct RegionView {
    std::uint64_t arena_id = 0;
    std::uint64_t id = 0;
    std::uint64_t generation = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t owner_session = 0;
    std::string tensor_name;  // empty: not a tensor
    RegionState state = RegionState::kUnknown;
};

struct GroupView {
    std::uint64_t arena_id = 0;
    std::uint64_t id = 0;
    std::string name;
    std::uint64_t epoch = 0;
    std::int32_t world = 0;
    std::int32_t joined = 0;
    std::vector<std::int32_t> dead_ranks;
    GroupState state = GroupState::kUnknown;
};

/// A rank that others wait for, and where it is.
struct LateRank {
    std::int32_t rank = 0;
    std::uint64_t session_id = 0;  // 0, like the pid: it has left or died, or never came
    std::int32_t pid = 0;
};

/// An operation of a group in which ranks have been waiting for seconds, as they say themselves.
struct WaitingView {
    std::uint64_t arena_id = 0;
    std::string arena;
    std::uint64_t group_id = 0;  // 0: the group is forming
    std::string group;
    std::int32_t world = 0;
    std::string operation;  // "allreduce"; "join": they wait for the group
    std::uint64_t bytes = 0;
    std::int64_t waited_ms = 0;  // the longest of them
    std::vector<std::int32_t> waiting;
    std::vector<LateRank> late;
    std::int32_t late_count = 0;  // above the size of `late`: in a join not all gave their rank
};

/// A shard and where its valid copy is.
struct ShardView {
    std::uint64_t arena_id = 0;  // of its header: the arena that it was made in
    std::uint64_t id = 0;        // of the header's region
    std::string name;            // "ARENA/NAME"
    std::uint64_t owner_session = 0;
    std::uint64_t bytes = 0;  // of the elements
    std::string home_arena;   // where the elements are
    std::uint64_t offset = 0;
    std::string home_device;    // whose quota counts them; "": none
    std::uint32_t readers = 0;  // sessions that have it open
    std::uint64_t moves = 0;
    ShardState state = ShardState::kUnknown;
    std::uint64_t moved_bytes = 0;  // while it moves
};

struct PoolView {
    std::string backend;
    std::string description;
    std::uint64_t capacity_bytes = 0;
    std::uint64_t used_bytes = 0;
    std::string machine;  // the emulated one; "": none
};

/// A published arena that gives memory back when others need it. From `used_bytes` on its maker's
/// own words.
struct CacheView {
    std::uint64_t arena_id = 0;
    std::string name;                   // the arena's
    std::uint64_t bytes = 0;            // that it may have at most
    std::uint64_t bytes_committed = 0;  // that it has
    std::uint64_t quota_bytes = 0;      // that the control loop lets it have
    std::uint64_t target_bytes = 0;     // that it is asked to keep to
    std::uint64_t floor_bytes = 0;      // that it keeps
    std::uint64_t bytes_used = 0;
    std::uint64_t readers = 0;
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::int64_t stall_ns = 0;               // that readers waited, all of them together
    std::uint64_t bytes_refetched = 0;       // that were fetched again after they had left
    std::uint64_t bytes_refetched_near = 0;  // of them: would be there with a quarter more memory
};

/// Bytes of the pool that requests had to wait for caches to give, and that were refused all the
/// same. Only rise.
struct PoolDemand {
    std::uint64_t waited = 0;
    std::uint64_t refused = 0;
};

/// How many there are, without a look at each.
struct SnapshotTotals {
    std::uint64_t sessions = 0;
    std::uint64_t sessions_connected = 0;
    std::uint64_t arenas = 0;
    std::uint64_t regions = 0;
    std::uint64_t groups = 0;
};

/// What is asked for, besides the totals and the devices, which always come.
struct SnapshotParts {
    bool sessions = false;
    bool arenas = false;
    bool regions = false;
    bool groups = false;
    bool shards = false;
    std::uint64_t arena_id = 0;  // regions of this arena alone; 0: of all

    static constexpr SnapshotParts all() { return {true, true, true, true, true}; }
};

struct Snapshot {
    std::uint64_t daemon_epoch = 0;
    std::int64_t uptime_ms = 0;
    bool draining = false;
    std::vector<std::string> alarms = {};  // what a person has to see to, a line each
    PoolView pool;
    std::vector<SessionView> sessions;
    std::vector<ArenaView> arenas;
    std::vector<RegionView> regions;
    std::vector<GroupView> groups;
    std::vector<DeviceView> devices;
    std::vector<ShardView> shards;
    std::vector<CacheView> caches;
    PoolDemand demand;
    SnapshotTotals totals = {};
};

/// The part of it that the control loop looks at in every window.
struct Places {
    std::vector<DeviceView> devices;
    std::vector<ShardView> shards;
    std::vector<CacheView> caches;
    PoolDemand demand;
    PoolView pool;
};

}  // namespace fabricd

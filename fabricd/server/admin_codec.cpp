#include "fabricd/server/admin_codec.hpp"

#include <algorithm>

namespace fabricd {

std::string printable(const std::string& text) {
    std::string result = text;
    std::replace_if(
        result.begin(), result.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
    return result;
}

void pack(const PoolView& view, admin::v1::Pool& message) {
    message.set_backend(view.backend);
    message.set_description(printable(view.description));
    message.set_capacity_bytes(view.capacity_bytes);
    message.set_used_bytes(view.used_bytes);
    message.set_machine(printable(view.machine));
}

void pack(const ArenaView& view, admin::v1::Arena& message) {
    message.set_id(view.id);
    message.set_name(printable(view.name));
    message.set_uid(view.uid);
    message.set_bytes(view.bytes);
    message.set_bytes_used(view.bytes_used);
    message.set_bytes_quarantined(view.bytes_quarantined);
    message.set_sessions(view.sessions);
    message.set_bytes_committed(view.bytes_committed);
    for (const std::uint64_t session : view.session_ids) message.add_session_ids(session);
}

void pack(const RegionView& view, admin::v1::Region& message) {
    message.set_arena_id(view.arena_id);
    message.set_id(view.id);
    message.set_generation(view.generation);
    message.set_offset(view.offset);
    message.set_bytes(view.bytes);
    message.set_owner_session(view.owner_session);
    message.set_tensor_name(printable(view.tensor_name));
    message.set_state(view.state);
}

void pack(const SessionView& view, admin::v1::Session& message) {
    message.set_id(view.id);
    message.set_pid(view.pid);
    message.set_uid(view.uid);
    message.set_label(printable(view.label));
    message.set_age_ms(view.age_ms);
    message.set_bytes_owned(view.bytes_owned);
    message.set_connected(view.connected);
    message.set_device(printable(view.device));
}

void pack(const GroupView& view, admin::v1::Group& message) {
    message.set_arena_id(view.arena_id);
    message.set_id(view.id);
    message.set_name(printable(view.name));
    message.set_epoch(view.epoch);
    message.set_world(view.world);
    message.set_joined(view.joined);
    for (const auto rank : view.dead_ranks) message.add_dead_ranks(rank);
    message.set_state(view.state);
}

void pack(const DeviceView& view, admin::v1::Device& message) {
    const DeviceSpec& spec = view.spec;
    message.set_name(printable(spec.name));
    message.set_kind(spec.kind);
    message.set_gflops(spec.gflops);
    message.set_share_percent(spec.share_percent);
    message.set_memory_bytes(spec.memory_bytes);
    message.set_quota_bytes(spec.quota_bytes);
    message.set_link_gbytes_per_s(spec.link_gbytes_per_s);
    message.set_link_latency_ns(spec.link_latency_ns);
    auto& efficiency = *message.mutable_efficiency();
    efficiency.set_convolution(spec.efficiency.convolution);
    efficiency.set_fully_connected(spec.efficiency.fully_connected);
    efficiency.set_activation(spec.efficiency.activation);
    efficiency.set_other(spec.efficiency.other);
    message.set_configured(view.configured);
    message.set_sessions(view.sessions);
    message.set_bytes_used(view.bytes_used);
    message.set_quota_target_bytes(view.quota_target_bytes);
    message.set_quota_left_ms(view.quota_left_ms);
    message.set_bytes_denied(view.bytes_denied);
    if (spec.numa_node >= 0) message.set_numa_node(spec.numa_node);
    message.set_faults(view.faults);
}

void pack(const ShardView& view, admin::v1::Shard& message) {
    message.set_arena_id(view.arena_id);
    message.set_id(view.id);
    message.set_name(printable(view.name));
    message.set_owner_session(view.owner_session);
    message.set_bytes(view.bytes);
    message.set_home_arena(printable(view.home_arena));
    message.set_offset(view.offset);
    message.set_home_device(printable(view.home_device));
    message.set_readers(view.readers);
    message.set_moves(view.moves);
    message.set_state(view.state);
    message.set_moved_bytes(view.moved_bytes);
}

void pack(const WaitingView& view, admin::v1::Waiting& message) {
    message.set_arena_id(view.arena_id);
    message.set_arena(printable(view.arena));
    message.set_group_id(view.group_id);
    message.set_group(printable(view.group));
    message.set_world(view.world);
    message.set_operation(view.operation);
    message.set_bytes(view.bytes);
    message.set_waited_ms(view.waited_ms);
    for (const auto rank : view.waiting) message.add_waiting(rank);
    for (const LateRank& late : view.late) {
        auto& added = *message.add_late();
        added.set_rank(late.rank);
        added.set_session_id(late.session_id);
        added.set_pid(late.pid);
    }
    message.set_late_count(view.late_count);
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
}

void pack_watch(const Snapshot& snapshot, const DaemonFacts& facts, bool with_regions,
                admin::v1::WatchReply& message) {
    pack_status(snapshot, facts, *message.mutable_status());
    for (const auto& arena : snapshot.arenas) pack(arena, *message.add_arenas());
    for (const auto& session : snapshot.sessions) pack(session, *message.add_sessions());
    for (const auto& group : snapshot.groups) pack(group, *message.add_groups());
    for (const auto& device : snapshot.devices) pack(device, *message.add_devices());
    // Regions may be a million, so they are sent to those who show them.
    if (!with_regions) return;
    for (const auto& region : snapshot.regions) pack(region, *message.add_regions());
}

// Aggregates by position: a field that is added to a view goes to its end, in both directions.
PoolView unpack(const admin::v1::Pool& message) {
    return {message.backend(), message.description(), message.capacity_bytes(),
            message.used_bytes(), message.machine()};
}

ArenaView unpack(const admin::v1::Arena& message) {
    return {message.id(),
            message.name(),
            message.uid(),
            message.bytes(),
            message.bytes_used(),
            message.bytes_quarantined(),
            message.sessions(),
            message.bytes_committed(),
            {message.session_ids().begin(), message.session_ids().end()}};
}

RegionView unpack(const admin::v1::Region& message) {
    return {message.arena_id(),    message.id(),    message.generation(),
            message.offset(),      message.bytes(), message.owner_session(),
            message.tensor_name(), message.state()};
}

SessionView unpack(const admin::v1::Session& message) {
    return {message.id(),     message.pid(),         message.uid(),       message.label(),
            message.age_ms(), message.bytes_owned(), message.connected(), message.device()};
}

GroupView unpack(const admin::v1::Group& message) {
    return {message.arena_id(),
            message.id(),
            message.name(),
            message.epoch(),
            message.world(),
            message.joined(),
            {message.dead_ranks().begin(), message.dead_ranks().end()},
            message.state()};
}

// In the order of DeviceSpec: a field that is added there in the middle moves all behind it here.
DeviceView unpack(const admin::v1::Device& message) {
    const auto& efficiency = message.efficiency();
    DeviceView view{{message.name(),
                     message.kind(),
                     message.gflops(),
                     message.share_percent(),
                     message.memory_bytes(),
                     message.quota_bytes(),
                     message.link_gbytes_per_s(),
                     message.link_latency_ns(),
                     {efficiency.convolution(), efficiency.fully_connected(),
                      efficiency.activation(), efficiency.other()}},
                    message.configured(),
                    message.sessions(),
                    message.bytes_used(),
                    message.quota_target_bytes(),
                    message.quota_left_ms(),
                    message.bytes_denied()};
    if (message.has_numa_node()) view.spec.numa_node = message.numa_node();
    view.faults = message.faults();
    return view;
}

ShardView unpack(const admin::v1::Shard& message) {
    return {message.arena_id(), message.id(),         message.name(),   message.owner_session(),
            message.bytes(),    message.home_arena(), message.offset(), message.home_device(),
            message.readers(),  message.moves(),      message.state(),  message.moved_bytes()};
}

WaitingView unpack(const admin::v1::Waiting& message) {
    WaitingView view{message.arena_id(),
                     message.arena(),
                     message.group_id(),
                     message.group(),
                     message.world(),
                     message.operation(),
                     message.bytes(),
                     message.waited_ms(),
                     {message.waiting().begin(), message.waiting().end()},
                     {},
                     message.late_count()};
    for (const auto& late : message.late()) {
        view.late.push_back({late.rank(), late.session_id(), late.pid()});
    }
    return view;
}

}  // namespace fabricd

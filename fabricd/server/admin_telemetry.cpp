// The telemetry part of the admin API's messages: a codec of its own, since it is half of them.

#include "fabricd/server/admin_codec.hpp"

namespace fabricd {

using namespace admin::v1;

namespace {

// Labels are printable already: the attach protocol refuses others, see proto::check_request().
void pack_session(const SessionSample& session, Training& message) {
    const auto& image = session.image;
    const SessionRates& rates = session.rates;
    message.set_session_id(session.session_id);
    message.set_pid(session.pid);
    message.set_uid(session.uid);
    message.set_label(session.label);
    message.set_device(session.device);
    message.set_stale(session.stale);
    message.set_member(session.member);
    message.set_group_id(image.group_id);
    message.set_rank(image.rank);
    message.set_world(image.world);
    message.set_steps(image.steps);
    message.set_samples(image.samples);
    message.set_steps_per_s(rates.steps_per_s);
    message.set_samples_per_s(rates.samples_per_s);
    message.set_step_seconds(rates.step_s);
    message.set_compute_share(rates.compute_share);
    message.set_wait_share(rates.wait_share);
    message.set_comm_share(rates.comm_share);
    message.set_loss(image.loss);
    message.set_batch(image.batch);
    message.set_queue(image.queue);
    message.set_memory_used_bytes(session.memory_used);
    message.set_memory_denied_bytes(session.memory_denied);
    message.set_directive_serial(image.directive_serial);
    message.set_sync_interval(image.sync_interval);
}

// What is not sent keeps its "not known", so that a view never shows a 0 for it.
SessionSample unpack_session(const Training& message) {
    SessionSample session;
    session.image = fabricshm::empty_telemetry();
    session.session_id = message.session_id();
    session.pid = message.pid();
    session.uid = message.uid();
    session.label = message.label();
    session.device = message.device();
    session.stale = message.stale();
    session.member = message.member();
    session.image.group_id = message.group_id();
    session.image.rank = message.rank();
    session.image.world = message.world();
    session.image.steps = message.steps();
    session.image.samples = message.samples();
    session.rates = {message.steps_per_s(),   message.samples_per_s(), message.step_seconds(),
                     message.compute_share(), message.wait_share(),    message.comm_share()};
    session.image.loss = message.loss();
    session.image.batch = message.batch();
    session.image.queue = message.queue();
    session.memory_used = message.memory_used_bytes();
    session.memory_denied = message.memory_denied_bytes();
    session.image.directive_serial = message.directive_serial();
    session.image.sync_interval = message.sync_interval();
    return session;
}

void pack_device(const DeviceSample& device, LiveDevice& message) {
    message.set_name(device.name);
    message.set_description(device.description);
    message.set_gpu(device.kind == DeviceKind::kGpu);
    message.set_numa_node(device.numa_node);
    message.set_units(device.units);
    message.set_busy(device.busy);
    message.set_memory_total_bytes(device.memory_total);
    message.set_memory_used_bytes(device.memory_used);
    message.set_stale(device.stale);
}

DeviceSample unpack_device(const LiveDevice& message) {
    DeviceSample device;
    device.name = message.name();
    device.description = message.description();
    device.kind = message.gpu() ? DeviceKind::kGpu : DeviceKind::kCpu;
    device.numa_node = message.numa_node();
    device.units = message.units();
    device.busy = message.busy();
    device.memory_total = message.memory_total_bytes();
    device.memory_used = message.memory_used_bytes();
    device.stale = message.stale();
    return device;
}

void pack_path(const PathSample& path, Path& message) {
    message.set_group_id(path.group_id);
    message.set_from(path.from);
    message.set_to(path.to);
    message.set_reads(path.reads);
    message.set_bytes_per_s(path.bytes_per_second);
    message.set_slow_bytes_per_s(path.slow_bytes_per_second);
    message.set_latency_ns(path.latency_ns);
    message.set_latency_p99_ns(path.latency_p99_ns);
}

}  // namespace

void pack(const Sample& sample, Telemetry& message) {
    message.set_number(sample.number);
    message.set_cost_ns(sample.cost_ns);
    for (const auto& session : sample.sessions) pack_session(session, *message.add_sessions());
    for (const auto& device : sample.devices) pack_device(device, *message.add_devices());
    for (const auto& path : sample.paths) pack_path(path, *message.add_paths());
}

Sample unpack(const Telemetry& message) {
    Sample sample;
    sample.number = message.number();
    sample.cost_ns = message.cost_ns();
    sample.sessions.reserve(static_cast<std::size_t>(message.sessions_size()));
    for (const auto& session : message.sessions()) {
        sample.sessions.push_back(unpack_session(session));
    }
    for (const auto& device : message.devices()) sample.devices.push_back(unpack_device(device));
    for (const auto& path : message.paths()) {
        sample.paths.push_back({path.group_id(), path.from(), path.to(), path.reads(),
                                path.bytes_per_s(), path.slow_bytes_per_s(), path.latency_ns(),
                                path.latency_p99_ns()});
    }
    return sample;
}

}  // namespace fabricd

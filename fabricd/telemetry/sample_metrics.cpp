#include "fabricd/telemetry/sample_metrics.hpp"

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "libfabricshm/shm/latency_rows.hpp"

namespace fabricd {

namespace {

using fabricshm::TelemetryImage;

// One family of sessions: its name and help, and where the number is. Tables, because the format
// wants all samples of a family in one place, and a session's numbers are all over them.
struct CounterOfSession {
    const char* name;
    const char* help;
    std::uint64_t (*value)(const SessionSample&);
};
struct SecondsOfSession {
    const char* name;
    const char* help;
    std::int64_t TelemetryImage::*value;
};
struct GaugeOfSession {
    const char* name;
    const char* help;
    double (*value)(const SessionSample&);
};

constexpr CounterOfSession kCounters[] = {
    {"fabricd_session_steps_total", "Steps of training that the session ended.",
     [](const SessionSample& session) { return session.image.steps; }},
    {"fabricd_session_samples_total", "Samples of those steps.",
     [](const SessionSample& session) { return session.image.samples; }},
    {"fabricd_session_memory_denied_bytes_total", "Bytes of the pool that the session was refused.",
     [](const SessionSample& session) { return session.memory_denied; }},
};

constexpr SecondsOfSession kSeconds[] = {
    {"fabricd_session_step_seconds_total", "Time of the steps.", &TelemetryImage::step_ns},
    {"fabricd_session_compute_seconds_total", "Of it: computing.", &TelemetryImage::compute_ns},
    {"fabricd_session_wait_seconds_total", "Of it: waiting for other ranks.",
     &TelemetryImage::wait_ns},
    {"fabricd_session_comm_seconds_total", "Of it: moving bytes.", &TelemetryImage::comm_ns},
};

constexpr GaugeOfSession kGauges[] = {
    {"fabricd_session_stale", "1 while the session has written nothing for a while.",
     [](const SessionSample& session) { return session.stale ? 1.0 : 0.0; }},
    {"fabricd_session_loss", "Loss of the last step, as the trainer gave it.",
     [](const SessionSample& session) { return session.image.loss; }},
    {"fabricd_session_gradient_norm", "Norm of the rank's own gradient in the last step.",
     [](const SessionSample& session) { return session.image.gradient_norm; }},
    {"fabricd_session_memory_used_bytes", "Bytes of the pool that the session holds.",
     [](const SessionSample& session) { return static_cast<double>(session.memory_used); }},
    {"fabricd_session_queue", "Units of work that wait.",
     [](const SessionSample& session) { return static_cast<double>(session.image.queue); }},
    {"fabricd_session_sync_interval", "Steps between two averagings, in force; 0: not set.",
     [](const SessionSample& session) { return static_cast<double>(session.image.sync_interval); }},
};

// The labels that all families of sessions share: one of them is enough to find the others. A rank
// that the daemon's records do not confirm is no session's.
std::string labels_of(const SessionSample& session) {
    return MetricsText::labels_text(
        {{"session", std::to_string(session.session_id)},
         {"label", session.label},
         {"rank", session.member ? std::to_string(session.image.rank) : ""}});
}

void add_sessions(const Sample& sample, MetricsText& text) {
    if (sample.sessions.empty()) return;
    // Once for all families: with 10,000 sessions they are most of the page.
    std::vector<std::string> labels;
    for (const auto& session : sample.sessions) labels.push_back(labels_of(session));
    const auto add = [&](const auto& family, MetricType type, const auto& value_of) {
        text.family(family.name, type, family.help);
        for (std::size_t i = 0; i < labels.size(); ++i) {
            text.sample_with(labels[i], value_of(sample.sessions[i]));
        }
    };
    for (const auto& family : kCounters) add(family, MetricType::kCounter, family.value);
    for (const auto& family : kSeconds) {
        add(family, MetricType::kCounter, [&](const SessionSample& session) {
            return static_cast<double>(session.image.*family.value) / 1e9;
        });
    }
    for (const auto& family : kGauges) add(family, MetricType::kGauge, family.value);
}

struct GaugeOfDevice {
    const char* name;
    const char* help;
    double (*value)(const DeviceSample&);
};

// In the base units that Prometheus asks for (bytes, seconds, hertz), hence the factors.
constexpr GaugeOfDevice kDeviceGauges[] = {
    {"fabricd_device_busy_share", "Share of the last second in which the device worked.",
     [](const DeviceSample& device) { return device.busy; }},
    {"fabricd_device_memory_busy_share", "Share of it in which its memory was accessed.",
     [](const DeviceSample& device) { return device.memory_busy; }},
    {"fabricd_device_memory_total_bytes", "Memory of the device.",
     [](const DeviceSample& device) { return static_cast<double>(device.memory_total); }},
    {"fabricd_device_memory_used_bytes", "Of it: taken, by whomever.",
     [](const DeviceSample& device) { return static_cast<double>(device.memory_used); }},
    {"fabricd_device_power_watts", "Power that the device draws.",
     [](const DeviceSample& device) { return device.power_watts; }},
    {"fabricd_device_temperature_celsius", "Temperature of the device.",
     [](const DeviceSample& device) { return device.temperature_c; }},
    {"fabricd_device_clock_hertz", "Clock of its cores.",
     [](const DeviceSample& device) { return device.clock_mhz * 1e6; }},
};

void add_faults(const Sample& sample, MetricsText& text) {
    if (sample.devices.empty()) return;
    text.family("fabricd_device_fault", MetricType::kGauge,
                "1 while this is wrong with the device, else 0.");
    for (const auto& device : sample.devices) {
        for (const auto fault :
             {DeviceFault::kEcc, DeviceFault::kXid, DeviceFault::kStopped, DeviceFault::kThermal}) {
            text.sample({{"device", device.name}, {"fault", words_of(DeviceFaults{} | fault)}},
                        has_fault(device.faults, fault) ? 1.0 : 0.0);
        }
    }
}

void add_devices(const Sample& sample, MetricsText& text) {
    for (const auto& family : kDeviceGauges) {
        // A family without a sample is left out: a host without GPUs has nothing to say of watts.
        bool begun = false;
        for (const auto& device : sample.devices) {
            // Negative: this device does not know, or its numbers are old.
            if (device.stale || family.value(device) < 0) continue;
            if (!begun) text.family(family.name, MetricType::kGauge, family.help);
            begun = true;
            text.sample({{"device", device.name}}, family.value(device));
        }
    }
}

struct GaugeOfPath {
    const char* name;
    const char* help;
    double PathSample::*value;
};

constexpr GaugeOfPath kPathGauges[] = {
    {"fabricd_path_read_bytes_per_second", "Rate of timed reads of a peer's memory, median.",
     &PathSample::bytes_per_second},
    {"fabricd_path_slow_read_bytes_per_second", "The rate that 99 of 100 of them exceed.",
     &PathSample::slow_bytes_per_second},
    {"fabricd_path_latency_seconds", "Latency of one line of it, median.", &PathSample::latency_ns},
    {"fabricd_path_latency_p99_seconds", "The latency that 99 of 100 stay below.",
     &PathSample::latency_p99_ns},
};

void add_paths(const Sample& sample, MetricsText& text) {
    if (sample.paths.empty()) return;
    for (const auto& family : kPathGauges) {
        // Of latencies the sample has nanoseconds.
        const bool latency = std::string_view(family.name).find("latency") != std::string::npos;
        text.family(family.name, MetricType::kGauge, family.help);
        for (const auto& path : sample.paths) {
            text.sample({{"group", std::to_string(path.group_id)},
                         {"from", std::to_string(path.from)},
                         {"to", std::to_string(path.to)}},
                        path.*family.value / (latency ? 1e9 : 1.0));
        }
    }
}

// nullptr: of messages, or of a kind that does not exist.
const char* name_of_kind(int kind) {
    constexpr int kKnown = static_cast<int>(std::size(fabricshm::kLatencyKindNames));
    return kind < kKnown ? fabricshm::kLatencyKindNames[kind] : nullptr;
}

void add_latency_row(const char* operation, const char* size, const fabricshm::LatencyRow& row,
                     MetricsText& text) {
    std::uint64_t so_far = 0;
    for (int bucket = 0; bucket <= fabricshm::kLatencyEnds; ++bucket) {
        so_far += row.counts[bucket];
        const bool has_end = bucket < fabricshm::kLatencyEnds;
        const auto end = static_cast<double>(fabricshm::latency_end_ns(bucket)) / 1e9;
        text.part("_bucket",
                  {{"operation", operation},
                   {"size", size},
                   {"le", has_end ? metric_value(end) : "+Inf"}},
                  so_far);
    }
    text.part("_sum", {{"operation", operation}, {"size", size}},
              static_cast<double>(row.sum_ns) / 1e9);
    text.part("_count", {{"operation", operation}, {"size", size}}, so_far);
}

// By kind and size, and not by session: 1,300 series at most, however many there are of those.
void add_latencies(const LatencySums& latencies, MetricsText& text) {
    // A family without a sample is left out.
    if (latencies.image.used != 0) {
        text.family("fabricd_collective_seconds", MetricType::kHistogram,
                    "Collectives of ranks of this host from call to end, waits included.");
    }
    fabricshm::for_each_bit(latencies.image.used, [&](int row) {
        const char* name = name_of_kind(row / fabricshm::kLatencySizes);
        if (name == nullptr) return;  // a session can use any row
        add_latency_row(name, fabricshm::kLatencySizeNames[row % fabricshm::kLatencySizes],
                        latencies.image.rows[row], text);
    });
    text.family("fabricd_collective_failures_total", MetricType::kCounter,
                "Collectives that ended with an error.");
    for (int kind = 0; kind < fabricshm::kLatencyKinds; ++kind) {
        const char* name = name_of_kind(kind);
        if (name != nullptr) text.sample({{"operation", name}}, latencies.image.failures[kind]);
    }
    text.family("fabricd_collective_left_out_total", MetricType::kCounter,
                "Readings of sessions that can't be, and are in no sum.");
    text.sample({}, latencies.left_out);
}

}  // namespace

void add_sample_metrics(const Sample& sample, MetricsText& text) {
    text.family("fabricd_samples_total", MetricType::kCounter, "Looks at all sessions so far.");
    text.sample({}, sample.number);
    text.family("fabricd_sample_cost_seconds", MetricType::kGauge, "What the last one took.");
    text.sample({}, static_cast<double>(sample.cost_ns) / 1e9);
    add_sessions(sample, text);
    add_devices(sample, text);
    add_faults(sample, text);
    add_paths(sample, text);
    add_latencies(sample.latencies, text);
}

}  // namespace fabricd

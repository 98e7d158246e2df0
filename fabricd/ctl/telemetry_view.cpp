#include "fabricd/ctl/telemetry_view.hpp"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "fabricd/ctl/row_text.hpp"
#include "fabricd/ctl/table.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

namespace {

using fabricshm::format_bytes;

// A session may claim anything of itself, a loss of NaN included.
std::string shown(double value, int decimals) {
    if (!std::isfinite(value)) return "-";
    char text[40];
    std::snprintf(text, sizeof text, "%.*f", decimals, value);
    return text;
}

// Negative: not known, as in DeviceSample. So are the next.
std::string percent(double share) {
    return share < 0 ? "-" : shown(share * 100, 0) + " %";
}

std::string bytes(std::int64_t value) {
    return value < 0 ? "-" : format_bytes(static_cast<std::uint64_t>(value));
}

// -1 for a session that belongs to no group by the daemon's records, whatever it claims, and for
// one that is stale: its rate is an old one, and is not in the sum either.
double share_of_group(const SessionSample& session, const GroupRates& rates) {
    const auto group = rates.find(session.image.group_id);
    const bool known = session.member && !session.stale && group != rates.end();
    return known && group->second > 0 ? session.rates.samples_per_s / group->second : -1;
}

// WAIT and COMM are parts of the time of a step; SHARE is the rank's part of its group's samples,
// which S113 moves. MEMORY and DENIED come from the daemon's accounting and not from the session.
std::string training_text(const Sample& sample) {
    Table table({{"SESSION", kRight},
                 {"LABEL"},
                 {"RANK", kRight},
                 {"STEPS", kRight},
                 {"STEPS/S", kRight},
                 {"SAMPLES/S", kRight},
                 {"WAIT", kRight},
                 {"COMM", kRight},
                 {"SHARE", kRight},
                 {"MEMORY", kRight},
                 {"DENIED", kRight},
                 {"STATE"}});
    const auto rates = rates_of_groups(sample);
    for (const auto& session : sample.sessions) {
        const auto& image = session.image;
        const std::string rank = std::to_string(image.rank) + "/" + std::to_string(image.world);
        table.add({std::to_string(session.session_id), session.label, session.member ? rank : "-",
                   std::to_string(image.steps), shown(session.rates.steps_per_s, 1),
                   shown(session.rates.samples_per_s, 0), percent(session.rates.wait_share),
                   percent(session.rates.comm_share), percent(share_of_group(session, rates)),
                   format_bytes(session.memory_used), format_bytes(session.memory_denied),
                   session.stale ? "stale" : "live"});
    }
    return "\nTraining:\n" + table.text();
}

// Of this host, as its kernel and the NVIDIA driver report; the devices of the device file are
// another table.
std::string devices_text(const Sample& sample) {
    Table table({{"DEVICE"}, {"BUSY", kRight}, {"MEMORY", kRight}, {"USED", kRight}, {"WHAT"}});
    for (const auto& device : sample.devices) {
        table.add({device.name + (device.stale ? " (stale)" : ""), percent(device.busy),
                   bytes(device.memory_total), bytes(device.memory_used), device.description});
    }
    return "\nLoad:\n" + table.text();
}

// From timed reads of one rank's memory by another (S211). SLOW GB/S is what 99 of 100 reads
// exceed: a path that is good on average may still hold a step up.
std::string paths_text(const Sample& sample) {
    Table table({{"GROUP", kRight},
                 {"FROM", kRight},
                 {"TO", kRight},
                 {"GB/S", kRight},
                 {"SLOW GB/S", kRight},
                 {"LATENCY", kRight},
                 {"P99", kRight}});
    for (const auto& path : sample.paths) {
        table.add({std::to_string(path.group_id), std::to_string(path.from),
                   // Decimal, as links are rated; sizes of memory are binary.
                   std::to_string(path.to), shown(path.bytes_per_second * 1e-9, 1),
                   shown(path.slow_bytes_per_second * 1e-9, 1), shown(path.latency_ns, 0) + " ns",
                   shown(path.latency_p99_ns, 0) + " ns"});
    }
    return "\nPaths (timed reads of peers):\n" + table.text();
}

// JSON has no NaN, and a negative figure is an unknown one.
Json known(double value) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
}
Json if_known(double value) {
    return value >= 0 ? known(value) : Json(nullptr);
}

}  // namespace

GroupRates rates_of_groups(const Sample& sample) {
    GroupRates rates;
    for (const auto& session : sample.sessions) {
        if (session.member && !session.stale) {
            rates[session.image.group_id] += session.rates.samples_per_s;
        }
    }
    return rates;
}

std::string telemetry_text(const Sample& sample) {
    std::string text;
    if (!sample.sessions.empty()) text += training_text(sample);
    if (!sample.devices.empty()) text += devices_text(sample);
    if (!sample.paths.empty()) text += paths_text(sample);
    return text;
}

namespace {

// NaN: not known, as for known().
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

void put_training(const SessionSample& session, const GroupRates& rates, auto&& put) {
    const auto& image = session.image;
    const double share = share_of_group(session, rates);
    put("session", session.session_id);
    put("pid", session.pid);
    put("uid", session.uid);
    put("label", session.label);
    put("device", session.device);
    put("stale", session.stale);
    put("member", session.member);
    put("group", image.group_id);
    put("rank", image.rank);
    put("world", image.world);
    put("steps", image.steps);
    put("samples", image.samples);
    put("steps_per_s", session.rates.steps_per_s);
    put("samples_per_s", session.rates.samples_per_s);
    put("step_s", session.rates.step_s);
    put("compute_share", session.rates.compute_share);
    put("wait_share", session.rates.wait_share);
    put("comm_share", session.rates.comm_share);
    put("share_of_group", share >= 0 ? share : kUnknown);
    put("loss", image.loss);
    put("batch", image.batch);
    put("queue", image.queue);
    put("memory_used_bytes", session.memory_used);
    put("memory_denied_bytes", session.memory_denied);
    put("directive_serial", image.directive_serial);
    put("sync_interval", image.sync_interval);
}

// Rates in bytes per second and not in GB/s as above: programs convert, and JSON has the digits.
void put_path(const PathSample& path, auto&& put) {
    put("group", path.group_id);
    put("from", path.from);
    put("to", path.to);
    put("reads", path.reads);
    put("bytes_per_s", path.bytes_per_second);
    put("slow_bytes_per_s", path.slow_bytes_per_second);
    put("latency_ns", path.latency_ns);
    put("latency_p99_ns", path.latency_p99_ns);
}

}  // namespace

Json training_json(const SessionSample& session, const GroupRates& rates) {
    RowJson row;
    put_training(session, rates, row);
    return row.take();
}

void append_training(std::string& text, const SessionSample& session, const GroupRates& rates) {
    RowText row(text);
    put_training(session, rates, row);
}

Json load_json(const DeviceSample& device) {
    return {{"name", device.name},
            {"description", device.description},
            {"kind", device.kind == DeviceKind::kGpu ? "gpu" : "cpu"},
            {"numa_node", device.numa_node},
            {"units", device.units},
            {"busy", if_known(device.busy)},
            {"memory_total_bytes", if_known(static_cast<double>(device.memory_total))},
            {"memory_used_bytes", if_known(static_cast<double>(device.memory_used))},
            {"stale", device.stale}};
}

Json path_json(const PathSample& path) {
    RowJson row;
    put_path(path, row);
    return row.take();
}

void append_path(std::string& text, const PathSample& path) {
    RowText row(text);
    put_path(path, row);
}

Json telemetry_json(const Sample& sample) {
    Json json = {{"number", sample.number},
                 {"cost_ns", sample.cost_ns},
                 {"training", Json::array()},
                 {"devices", Json::array()},
                 {"paths", Json::array()}};
    const auto rates = rates_of_groups(sample);
    for (const auto& session : sample.sessions) {
        json["training"].push_back(training_json(session, rates));
    }
    for (const auto& device : sample.devices) json["devices"].push_back(load_json(device));
    for (const auto& path : sample.paths) json["paths"].push_back(path_json(path));
    return json;
}

}  // namespace fabricd

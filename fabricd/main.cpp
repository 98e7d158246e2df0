// fabricd: reads the configuration, makes the pool, serves until a signal. The only place that
// chooses between backends.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "emu/memory/presets.hpp"
#include "fabricd/config/device_file.hpp"
#include "fabricd/config/options.hpp"
#include "fabricd/config/runtime_dir.hpp"
#include "fabricd/control/loop/control_metrics.hpp"
#include "fabricd/net/tls_files.hpp"
#include "fabricd/server/admin_server.hpp"
#include "fabricd/server/daemon.hpp"
#include "fabricd/server/daemon_metrics.hpp"
#include "fabricd/server/job_trace_start.hpp"
#include "fabricd/server/lock_file.hpp"
#include "fabricd/server/metrics_server.hpp"
#include "fabricd/service/backend_factory.hpp"
#include "fabricd/service/cluster_setup.hpp"
#include "fabricd/service/control_setup.hpp"
#include "fabricd/service/emulation.hpp"
#include "fabricd/service/format_check.hpp"
#include "fabricd/service/notify.hpp"
#include "fabricd/service/pool_sharing.hpp"
#include "fabricd/service/signals.hpp"
#include "fabricd/service/vgpu_setup.hpp"
#include "fabricd/service/visibility_check.hpp"
#include "fabricd/telemetry/find_devices.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/log_spdlog.hpp"
#include "libfabricshm/base/version.hpp"

namespace {

using namespace fabricd;
using fabricshm::log;
using fabricshm::LogLevel;

// What systemd acts on: after 1 it tries again, after 2 it does not, since only a person can help.
constexpr int kHostFailed = 1;
constexpr int kMisconfigured = 2;
constexpr auto kNotifyTimeout = std::chrono::seconds(5);

// One line, to standard error even when there is a log file: the shell that started it shows it,
// and systemd keeps it.
int fail_start(const ErrorMessage& error_message) {
    std::fprintf(stderr, "fabricd: %s\n", error_message->c_str());
    return error_message.is_of_host ? kHostFailed : kMisconfigured;
}

fabricshm::LogFormat log_format(const Config& config) {
    using fabricshm::LogFormat;
    return config.log.format == "json" ? LogFormat::kJson : LogFormat::kText;
}

DaemonOptions daemon_options(const Config& config, Bytes capacity,
                             const std::vector<DeviceSpec>& devices) {
    DaemonOptions options;
    options.devices = devices;
    for (const DeviceSpec& device : devices) {
        if (!device.gpu.empty()) options.sampling.gpus.emplace_back(device.name, device.gpu);
    }
    options.socket_path = config.server.socket;
    options.socket_mode = config.server.socket_mode;
    options.socket_group = config.server.socket_group;
    options.allow_uids = config.server.allow_uids;
    options.state_dir = config.state.dir;
    options.limits = config.limits;
    // A small pool should still serve programs that name no size.
    options.limits.default_arena_bytes = std::min(config.limits.default_arena_bytes, capacity);
    options.refuses_damage = config.state.damaged_journal == "refuse";
    options.adopt_grace = config.state.adopt_grace;
    options.dax_trust_users = config.pool.dax_trust_users;
    options.sampling.period = config.telemetry.interval;
    options.sampling.stale_after = config.telemetry.stale_after;
    options.device_sources = [gpus = config.telemetry.gpus] { return find_devices(gpus); };
    if (const auto interval = watchdog_interval()) {
        // Three signs of life per interval: one that comes late must not end the service.
        options.tick_period = std::min<Duration>(options.tick_period, *interval / 3);
        options.on_tick = [] { notify_systemd("WATCHDOG=1"); };
    }
    return options;
}

void reload(const Options& options) {
    notify_systemd("RELOADING=1", kNotifyTimeout);
    if (const auto opened = fabricshm::reopen_spdlog(); !opened.ok()) {
        log(LogLevel::kError, "%s", fabricshm::describe(opened.error()).c_str());
    }
    Options fresh;
    if (const auto bad = parse_options(options.argc, options.argv, fresh)) {
        log(LogLevel::kError, "reload: %s", bad->c_str());
    } else {
        const std::string& level = fresh.config.log.level;
        // Nothing else of a configuration changes while the daemon runs.
        (void)fabricshm::set_log_level_by_name(level);  // the table lets known names through only
        log(LogLevel::kInfo, "reloaded: log level %s", level.c_str());
        resolve_paths(fresh.config);  // as those of the start were
        const std::string waiting = changed_keys(options.config, fresh.config, {"log.level"});
        if (!waiting.empty()) {
            log(LogLevel::kWarning, "reload: waits for a restart: %s", waiting.c_str());
        }
    }
    notify_systemd("READY=1", kNotifyTimeout);
}

/// A guest of another host's pool: that one's daemon keeps the records, and this one has its
/// clients.
int run_guest(const Options& options, SignalThread signals) {
    const Config& config = options.config;
    if (const auto made = make_directory(config.state.dir, 0700); !made.ok()) {
        return fail_start(error_message_of(made.error(), "state.dir " + config.state.dir));
    }
    std::function<void()> on_tick;
    if (watchdog_interval()) on_tick = [] { notify_systemd("WATCHDOG=1"); };
    auto started = start_guest(config, on_tick);
    if (!started.ok()) {
        return fail_start(error_message_of(
            started.error(), "pool.dax_device " + config.pool.dax_device + ", pool.owner " +
                                 config.pool.owner + ", server.socket " + config.server.socket));
    }
    const std::unique_ptr<GuestDaemon> guest = std::move(*started);
    auto joined = start_cluster(config, *guest);
    if (!joined.ok()) return fail_start(error_message_of(joined.error(), "section [cluster]"));
    const std::unique_ptr<Cluster> cluster = std::move(*joined);
    auto admin = AdminServer::start(config.server.admin_socket, admin_hooks_of(*guest, *cluster));
    if (!admin.ok()) {
        return fail_start(
            error_message_of(admin.error(), "server.admin_socket " + config.server.admin_socket));
    }
    signals.start({[&guest](int number, SignalThread::Sender sender) {
                       log(LogLevel::kInfo, "audit: signal %d of pid %d, uid %u: stopping", number,
                           sender.pid, sender.uid);
                       guest->stop();
                   },
                   [&options] { reload(options); }});
    log(LogLevel::kInfo, "ready: trainers attach at %s, as guests of %s",
        config.server.socket.c_str(), config.pool.owner.c_str());
    notify_systemd("READY=1\nSTATUS=Serving " + config.server.socket, kNotifyTimeout);
    const auto ended = guest->run();
    notify_systemd("STOPPING=1", kNotifyTimeout);
    cluster->stop(guest->is_empty());
    if (ended.ok()) return 0;
    log(LogLevel::kError, "%s", fabricshm::describe(ended.error()).c_str());
    return 1;
}

/// Takes the signals with it: their thread ends here, since none may reach a daemon that is being
/// taken apart.
int serve(const Options& options, Daemon& daemon, Cluster& cluster, SignalThread signals) {
    signals.start({[&daemon](int number, SignalThread::Sender sender) {
                       log(LogLevel::kInfo, "audit: signal %d of pid %d, uid %u: stopping", number,
                           sender.pid, sender.uid);
                       daemon.stop();
                   },
                   [&options] { reload(options); }});
    log(LogLevel::kInfo, "ready: trainers attach at %s", options.config.server.socket.c_str());
    notify_systemd("READY=1\nSTATUS=Serving " + options.config.server.socket, kNotifyTimeout);
    const auto ended = daemon.run();
    notify_systemd("STOPPING=1", kNotifyTimeout);
    // With sessions left, which the next daemon takes over, the place in the cluster stays for it,
    // too.
    cluster.stop(daemon.snapshot({}).totals.sessions == 0);
    // A daemon that could not go on: systemd restarts it, and sessions come back.
    if (ended.ok()) return 0;
    log(LogLevel::kError, "%s", fabricshm::describe(ended.error()).c_str());
    return 1;
}

AdminHooks admin_hooks(Daemon& daemon, const Vgpus& all_vgpus, Cluster& cluster,
                       const DaemonControl* control) {
    VgpuLimits& vgpus = *all_vgpus.limits;
    AdminHooks hooks;
    hooks.snapshot = [&daemon, alarm = all_vgpus.alarm](const SnapshotParts& parts) {
        Snapshot all = daemon.snapshot(parts);
        if (!alarm.empty()) all.alarms.push_back(alarm);
        return all;
    };
    hooks.drain = [&daemon](bool on) { daemon.drain(on); };
    hooks.shutdown = [&daemon] { daemon.stop(); };
    hooks.events = [](std::size_t most) { return fabricshm::recent_events(most); };
    hooks.sample = [&daemon] { return daemon.sampler().latest(); };
    hooks.vgpus = [&vgpus] { return vgpus.list(); };
    hooks.set_vgpu = [&vgpus](const VgpuOrder& order) { return vgpus.set(order); };
    hooks.move = [&daemon](const MoveOrder& order, std::function<void(const Result<void>&)> done) {
        return daemon.move_shard(order, std::move(done));
    };
    hooks.waiting = [&daemon] { return daemon.waiting(); };
    hooks.trace = [traces = std::make_shared<JobTraces>(daemon)](const std::string& job,
                                                                 fabricshm::Duration length) {
        return traces->begin(job, length);
    };
    hooks.shard = [&daemon](const std::string& name) { return daemon.shard(name); };
    hooks.hosts = [&cluster] { return cluster.view(); };
    hooks.fence_host = [&cluster, &daemon](const std::string& host) -> fabricshm::Result<void> {
        // Sessions of a guest that no cluster calls lost are a person's to end.
        const int ended = daemon.fence_guest(host);
        const auto fenced = cluster.confirm_fence(host);
        return ended != 0 ? fabricshm::Result<void>{} : fenced;
    };
    hooks.quota = [&daemon](const QuotaOrder& order) { return daemon.set_quota(order); };
    if (control != nullptr) {
        hooks.decisions = [control](std::uint64_t id, std::size_t last) {
            return control->decisions(id, last);
        };
    }
    return hooks;
}

fabricshm::Result<std::unique_ptr<MetricsServer>> serve_metrics(const Config& config,
                                                                Daemon& daemon,
                                                                const Cluster& cluster,
                                                                const DaemonControl* control) {
    const MetricsAddress address{config.telemetry.metrics_socket,
                                 static_cast<std::uint16_t>(config.telemetry.metrics_port)};
    // Called on the thread of the metrics server.
    return MetricsServer::start(address, [&daemon, &cluster, control] {
        std::string page =
            metrics_page(daemon.snapshot({.arenas = true}), daemon.sampler().latest());
        MetricsText requests;
        daemon.request_stats().add_to(requests);
        page += requests.text();
        page += cluster_metrics(*cluster.view());
        if (control != nullptr) page += control_metrics(control->controller().counters());
        return page;
    });
}

ErrorMessage metrics_error_message(const fabricshm::Error& error, const Config& config) {
    return error_message_of(error, "telemetry.metrics_socket " + config.telemetry.metrics_socket +
                                       ", telemetry.metrics_port " +
                                       std::to_string(config.telemetry.metrics_port));
}

// Of start(): mostly another daemon, or a folder that may not be written.
ErrorMessage start_error_message(const fabricshm::Error& error, const Config& config) {
    if (error.code == fabricshm::Errc::kBusy) {
        // What people meet most, in words.
        return "another fabricd serves " + config.server.socket + " (server.socket)";
    }
    return error_message_of(
        error, "server.socket " + config.server.socket + ", state.dir " + config.state.dir);
}

// Users that are admitted and can't connect: most likely a key was forgotten, and nothing else
// would ever say so.
void warn_of_closed_socket(const Config::Server& server) {
    const bool group_enters = (server.socket_mode & 0060) == 0060;
    const bool all_enter = (server.socket_mode & 0006) == 0006;
    const bool others_listed =
        std::any_of(server.allow_uids.begin(), server.allow_uids.end(),
                    [](std::uint32_t uid) { return uid != 0 && uid != ::geteuid(); });
    if (others_listed && !all_enter && (server.socket_group.empty() || !group_enters)) {
        log(LogLevel::kWarning,
            "server.allow_uids names users that can't open the socket: server.socket_mode is %04o; "
            "0666 lets all connect, and admits these",
            server.socket_mode);
    }
    if (!server.socket_group.empty() && !group_enters && !all_enter) {
        log(LogLevel::kWarning,
            "the members of server.socket_group can't open the socket: server.socket_mode is %04o; "
            "0660 lets them connect",
            server.socket_mode);
    }
}

ErrorMessage read_devices(const std::string& file, std::vector<DeviceSpec>& devices) {
    if (file.empty()) return {};
    const auto bad = read_device_file(file, devices);
    if (bad) return ErrorMessage(*bad + " (devices.file)");
    return {};
}

// Measures the pool as it is and lets new arenas behave like the machine of the configuration.
ErrorMessage start_emulation(const Config& config, fabricshm::PoolBackend& pool,
                             DaemonOptions& options) {
    std::optional<Emulation> emulation;
    if (auto bad = plan_emulation(config, emulation)) return bad;
    if (!emulation) return {};
    if (auto bad = calibrate(pool, {}, *emulation)) return bad;
    log_emulation(*emulation);
    options.links = emulation->links;
    options.machine = emulation->summary;
    return {};
}

/// Of a daemon that owns its pool.
int run_owner(const Options& options, const std::vector<DeviceSpec>& devices,
              SignalThread signals) {
    const Config& config = options.config;
    // Before the device is touched.
    if (const auto bad = check_format(config)) return fail_start(bad);
    std::unique_ptr<fabricshm::PoolBackend> pool;
    if (const auto bad = make_backend(config, {}, pool)) return fail_start(bad);
    const Bytes capacity = pool->totals().capacity;
    const auto pool_uuid = pool->uuid();
    log(LogLevel::kInfo, "fabricd %s, pool %s: %s, %s", FABRIC_VERSION, pool->kind(),
        fabricshm::format_bytes(capacity).c_str(), pool->describe().c_str());

    // Emulation measures a piece of the pool and gives it back, before the daemon owns the pool.
    DaemonOptions wanted = daemon_options(config, capacity, devices);
    if (const auto bad = start_emulation(config, *pool, wanted)) return fail_start(bad);
    if (const auto bad = set_visibility(config, wanted)) return fail_start(bad);
    auto started = Daemon::start(std::move(wanted), std::move(pool));
    if (!started.ok()) return fail_start(start_error_message(started.error(), config));
    const std::unique_ptr<Daemon> daemon = std::move(*started);
    Vgpus vgpus;
    if (const auto bad = start_vgpus(config, devices, vgpus)) return fail_start(bad);
    const auto control = DaemonControl::start(config, *daemon, *vgpus.limits);
    auto joined = start_cluster(config, *daemon);
    if (!joined.ok()) return fail_start(error_message_of(joined.error(), "section [cluster]"));
    const std::unique_ptr<Cluster> cluster = std::move(*joined);
    auto admin = AdminServer::start(config.server.admin_socket,
                                    admin_hooks(*daemon, vgpus, *cluster, control.get()));
    if (!admin.ok()) {
        return fail_start(
            error_message_of(admin.error(), "server.admin_socket " + config.server.admin_socket));
    }
    auto metrics = serve_metrics(config, *daemon, *cluster, control.get());
    if (!metrics.ok()) {
        return fail_start(metrics_error_message(metrics.error(), config));
    }
    auto peers = start_peer_server(config, *daemon, pool_uuid);
    if (!peers.ok()) {
        return fail_start(
            error_message_of(peers.error(), "cluster.listen " + config.cluster.listen));
    }
    return serve(options, *daemon, *cluster, std::move(signals));
}

int run(Options& options) {
    // In this order: signals before any thread, what is cheap to check before what costs, and the
    // admin socket last, whose clients ask for all that comes before it.
    Config& config = options.config;
    resolve_paths(config);
    auto signals = SignalThread::block();
    if (!signals.ok()) return fail_start(error_message_of(signals.error(), "signals"));
    if (const auto opened = fabricshm::install_spdlog(config.log.file, log_format(config));
        !opened.ok()) {
        ErrorMessage error_message = error_message_of(opened.error(), "log.file");
        // A folder that is there and may be written: then it is the disk.
        const std::string folder = config.log.file.substr(0, config.log.file.rfind('/') + 1);
        error_message.is_of_host = ::access(folder.c_str(), W_OK | X_OK) == 0;
        return fail_start(error_message);
    }
    (void)fabricshm::set_log_level_by_name(config.log.level);

    // Whether other users have to be able to walk through the runtime folder.
    const bool others_enter = config.server.socket_mode != 0600 ||
                              !config.server.allow_uids.empty() ||
                              !config.server.socket_group.empty();
    if (const auto bad = prepare_runtime_dir(config.server.runtime_dir, others_enter)) {
        return fail_start(bad);
    }
    warn_of_closed_socket(config.server);
    std::vector<DeviceSpec> devices;
    if (const auto bad = read_devices(config.devices.file, devices)) return fail_start(bad);
    if (const auto bad = check_visibility(config, {})) return fail_start(bad);
    if (const auto bad = check_pool_sharing(config)) return fail_start(bad);
    if (auto bad = check_tls_files(config.cluster); !bad.empty()) return fail_start(bad);
    if (!config.pool.owner.empty()) return run_guest(options, std::move(*signals));
    return run_owner(options, devices, std::move(*signals));
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    // Asking for help works with a broken configuration, too: what was read so far is not used.
    const auto bad = parse_options(argc, argv, options);
    if (options.help) return std::fputs(help_text().c_str(), stdout) < 0;
    if (options.version) return std::printf("fabricd %s\n", FABRIC_VERSION) < 0;
    if (options.list_presets && !bad) return std::fputs(emu::presets_text().c_str(), stdout) < 0;
    if (options.print_config_table) return std::fputs(config_table_markdown().c_str(), stdout) < 0;
    if (options.print_config_manual) return std::fputs(config_manual().c_str(), stdout) < 0;
    if (bad) return fail_start(bad);
    if (!options.completion.empty()) {
        const auto script = completion_script(completed_program(), options.completion);
        return std::fputs(script.value_or("").c_str(), stdout) < 0;
    }
    if (options.print_config) return std::fputs(print_config(options.config).c_str(), stdout) < 0;
    return run(options);
}

#include "fabricd/service/pool_sharing.hpp"

#include <atomic>
#include <memory>
#include <span>

#include "fabricd/server/remote_hosts.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/log_spdlog.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/random.hpp"
#include "libfabricshm/shm/flush_policy.hpp"

namespace fabricd {

using fabricshm::Result;

namespace {

using Devices = std::shared_ptr<const fabricshm::DaxDevices>;

PeerFiles files_of(const Config& config) {
    return {config.cluster.tls_ca, config.cluster.tls_cert, config.cluster.tls_key};
}

// Random numbers, each to another place than the last: guests may be asked at the same time.
std::function<Result<PeerMark>()> marks_on(const Devices& devices) {
    const auto next = std::make_shared<std::atomic<std::uint32_t>>(0);
    return [devices, next]() -> Result<PeerMark> {
        PeerMark made;
        made.mark = (*next)++ % fabricshm::DaxDevice::kMarks;
        FABRIC_TRY_VOID(fabricshm::fill_random(std::as_writable_bytes(std::span(&made.value, 1))));
        FABRIC_TRY_VOID(devices->write_mark(made.mark, made.value));
        return made;
    };
}

// What this host's processes stored leaves its caches before another host's get the memory.
Result<void> write_out_on(const Devices& devices, Daemon& daemon) {
    FABRIC_TRY(const fabricshm::DaxCatalogue catalogue, devices->first().load());
    daemon.write_out_by([devices, stripes = catalogue.stripes()](const OpenRange& range) {
        return devices->flush(stripes, range.offset, range.bytes);
    });
    return {};
}

}  // namespace

ErrorMessage check_pool_sharing(const Config& config) {
    const bool is_guest = !config.pool.owner.empty();
    const bool has_guests = !config.cluster.listen.empty();
    if (!is_guest && !has_guests) return {};
    if (is_guest && has_guests) {
        return std::string(
            "pool.owner and cluster.listen exclude each other: a guest has no guests");
    }
    const std::string key = is_guest ? "pool.owner" : "cluster.listen";
    if (config.pool.backend != "dax" || config.pool.hosts < 2) {
        return key + " is for a pool that hosts share: pool.backend dax, pool.hosts above 1";
    }
    const std::string& address = is_guest ? config.pool.owner : config.cluster.listen;
    if (auto bad = check_peer_address(key, address, files_of(config)); !bad.empty()) return bad;
    if (is_guest && (config.pool.dax_format || config.pool.dax_take_over)) {
        return std::string("--format and --take-over are for a pool's owner: leave out pool.owner");
    }
    const std::string host = host_name_of(config.cluster);
    if (!is_host_name(host)) {
        return "cluster.host_name: \"" + host + "\": letters, digits, '.', '_' and '-', 63 at most";
    }
    return {};
}

ErrorMessage set_visibility(const Config& config, DaemonOptions& options) {
    if (config.pool.hosts == 1) return {};
    const auto profile = fabricshm::find_profile(config.pool.visibility);
    if (!profile.ok()) return error_message_of(profile.error(), "pool.visibility");
    options.visibility = fabricshm::make_policy(*profile);
    options.visibility_profile = profile->name;
    options.host_name = host_name_of(config.cluster);
    return {};
}

Result<std::unique_ptr<PeerServer>> start_peer_server(const Config& config, Daemon& daemon,
                                                      const fabricshm::Uuid& pool) {
    if (config.cluster.listen.empty()) return std::unique_ptr<PeerServer>();
    PeerServerOptions options;
    options.address = config.cluster.listen;
    options.files = files_of(config);
    options.pool = pool;
    options.host = host_name_of(config.cluster);
    FABRIC_TRY(auto opened, fabricshm::DaxDevices::open_as_guest(config.pool.devices(), {}));
    const auto devices = std::make_shared<const fabricshm::DaxDevices>(std::move(opened));
    if (config.pool.visibility != "coherent-hosts") {
        FABRIC_TRY_VOID(write_out_on(devices, daemon));
    }
    PeerHooks hooks;
    hooks.write_mark = marks_on(devices);
    hooks.used = [&daemon] { return daemon.used_bytes(); };
    hooks.take = [&daemon](fabricshm::UnixSocket socket, const Peer& peer) {
        daemon.take_guest(std::move(socket), peer);
    };
    hooks.ended = [&daemon](const Peer& host, std::uint64_t session) {
        daemon.on_guests("guest_end",
                         [&](RemoteHosts& guests) { guests.ended(host, SessionId{session}); });
    };
    hooks.died = [&daemon](const Peer& host, std::uint64_t session) {
        daemon.on_guests("guest_death",
                         [&](RemoteHosts& guests) { guests.died(host, SessionId{session}); });
    };
    hooks.presented_others = [&daemon](const Peer& host, std::uint64_t session,
                                       std::uint64_t arena) {
        daemon.on_guests("guest_files", [&](RemoteHosts& guests) {
            guests.presented_others(host, SessionId{session}, ArenaId{arena});
        });
    };
    hooks.greet = [&daemon](const Peer& host) { return daemon.greet_guest(host); };
    return PeerServer::start(std::move(options), std::move(hooks));
}

Result<std::unique_ptr<GuestDaemon>> start_guest(const Config& config,
                                                 std::function<void()> on_tick) {
    FABRIC_TRY(auto devices, fabricshm::DaxDevices::open_as_guest(config.pool.devices(), {}));
    GuestOptions options;
    options.socket_path = config.server.socket;
    options.socket_mode = config.server.socket_mode;
    options.socket_group = config.server.socket_group;
    options.allow_uids = config.server.allow_uids;
    options.max_sessions = config.limits.max_sessions;
    options.owner = config.pool.owner;
    options.files = files_of(config);
    options.host = host_name_of(config.cluster);
    options.flushes = config.pool.visibility != "coherent-hosts";
    options.on_tick = std::move(on_tick);
    return GuestDaemon::start(std::move(options), std::move(devices));
}

AdminHooks admin_hooks_of(GuestDaemon& guest, Cluster& cluster) {
    AdminHooks hooks;
    hooks.snapshot = [&guest](const SnapshotParts&) { return guest.snapshot(); };
    hooks.drain = [&guest](bool on) { guest.drain(on); };
    hooks.shutdown = [&guest] { guest.stop(); };
    hooks.events = [](std::size_t most) { return fabricshm::recent_events(most); };
    hooks.hosts = [&cluster] { return cluster.view(); };
    hooks.fence_host = [&cluster](const std::string& host) { return cluster.confirm_fence(host); };
    return hooks;
}

}  // namespace fabricd

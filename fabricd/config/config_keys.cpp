// The table of keys: one line of C++ per key.

#include "fabricd/config/config.hpp"
#include "fabricd/config/control_keys.hpp"
#include "fabricd/config/key_kinds.hpp"

namespace fabricd {

namespace {

using fabricshm::kGiB;
using fabricshm::kMiB;

// Fields are reached by accessors, so that a key names its place once.
#define FIELD(member) FABRIC_FIELD(member)

std::vector<ConfigKey> server_keys() {
    return {
        path_key("server.runtime_dir", FIELD(server.runtime_dir),
                 "Folder of the sockets. Empty: $RUNTIME_DIRECTORY (systemd), "
                 "$XDG_RUNTIME_DIR/fabricd, /run/fabricd for root, else /tmp/fabricd-UID."),
        path_key("server.socket", FIELD(server.socket),
                 "Socket that trainers attach to. Empty: attach.sock in the runtime folder."),
        path_key("server.admin_socket", FIELD(server.admin_socket),
                 "Socket of fabricctl, for the daemon's own user only. Empty: admin.sock in the "
                 "runtime folder."),
        mode_key("server.socket_mode", FIELD(server.socket_mode), "Mode of the attach socket."),
        text_key("server.socket_group", "group name", FIELD(server.socket_group),
                 "Group of the attach socket; its members are admitted. Empty: none."),
        users_key("server.allow_uids", FIELD(server.allow_uids),
                  "Users admitted besides root and the daemon's own."),
    };
}

std::vector<ConfigKey> pool_keys() {
    return {
        choice_key(
            "pool.backend", {"auto", "emu", "numa", "dax"}, FIELD(pool.backend),
            "Where the memory is. auto: numa when a CPU-less memory node is found, else emu; "
            "dax is never chosen by itself (fabricctl discover says why)."),
        size_key("pool.capacity", 2 * kMiB, 64 * kTiB, "half of what is available (dax: all)",
                 FIELD(pool.capacity), "Bytes of all arenas together."),
        choice_key("pool.huge_pages", {"transparent", "reserved", "off"}, FIELD(pool.huge_pages),
                   "Pages of emu and numa arenas; reserved takes them from the hugetlb pool."),
        size_key("pool.reserved_page_bytes", 2 * kMiB, kGiB, nullptr,
                 FIELD(pool.reserved_page_bytes),
                 "Size of reserved huge pages: one that the machine has (2MiB or 1GiB on x86)."),
        count_key("pool.numa_node", -1, 1023, FIELD(pool.numa_node),
                  "Node of a numa pool; -1: the CPU-less node with the most memory."),
        path_key("pool.dax_device", FIELD(pool.dax_device),
                 "Device of a dax pool, such as /dev/dax0.0. Empty: the only one there is."),
        paths_key(
            "pool.dax_devices", FIELD(pool.dax_devices),
            "Instead of pool.dax_device: 1 to 8 devices that the pool is striped over, always "
            "in the order in which they were formatted."),
        text_key("pool.dax_uuid", "UUID", FIELD(pool.dax_uuid),
                 "Refuse the device unless its catalogue has this UUID. Empty: any."),
        flag_key("pool.dax_trust_users", FIELD(pool.dax_trust_users),
                 "Admit several users to a dax pool, and publish arenas there: each of them can "
                 "reach and write all of its arenas."),
        count_key("pool.hosts", 1, 1024, FIELD(pool.hosts),
                  "Hosts that reach the pool. With more than one fabricd starts only with a proven "
                  "pool.visibility."),
        text_key(
            "pool.owner", "HOST:PORT or unix:/PATH", FIELD(pool.owner),
            "cluster.listen of the daemon that owns the pool, on another host: this one serves "
            "its own host as a guest of that one. Empty: this daemon owns its pool."),
        choice_key(
            "pool.visibility",
            {"coherent", "coherent-hosts", "clwb", "clflushopt", "clflush", "nt"},
            FIELD(pool.visibility),
            "How writes become visible to the other hosts: by the hardware, or by flushing."),
        path_key(
            "pool.visibility_proof", FIELD(pool.visibility_proof),
            "Result file of fabric-litmus for this machine, device and profile, written by two "
            "hosts."),
    };
}

// 0 is a value only where there is a word for it; a count of 0 would admit no session.
std::vector<ConfigKey> limit_keys() {
    return {
        size_key("arena.default_bytes", 2 * kMiB, 64 * kTiB, nullptr,
                 FIELD(limits.default_arena_bytes), "Size of an arena whose maker names none."),
        size_key("arena.max_bytes", 2 * kMiB, 64 * kTiB, "the pool is the limit",
                 FIELD(limits.max_arena_bytes), "Largest arena."),

        size_key("limits.user_quota", 2 * kMiB, 64 * kTiB, "the pool is the limit",
                 FIELD(limits.user_quota_bytes),
                 "Committed bytes of all arenas of one user together."),
        count_key("limits.sessions", 1, 100000, FIELD(limits.max_sessions),
                  "Sessions in all; 16 more for root and the daemon's user."),
        count_key("limits.sessions_per_user", 1, 100000, FIELD(limits.max_sessions_per_user),
                  "Sessions of one user."),
        count_key("limits.arenas_per_user", 1, 100000, FIELD(limits.max_arenas_per_user),
                  "Arenas of one user."),
        count_key("limits.arenas_per_session", 1, 1000, FIELD(limits.max_arenas_per_session),
                  "Arenas that one session has open."),
        count_key("limits.regions_per_session", 1, 10000000, FIELD(limits.max_regions_per_session),
                  "Regions that one session owns."),
        count_key("limits.groups_per_arena", 1, 100000, FIELD(limits.max_groups_per_arena),
                  "Groups in one arena."),
        size_key("limits.move_bytes_per_second", kMiB, kTiB, "no limit",
                 FIELD(limits.move_bytes_per_second),
                 "Bytes per second that all moving shards together copy at most, whatever their "
                 "orders say."),
    };
}

std::vector<ConfigKey> cluster_keys() {
    return {
        text_key("cluster.etcd", "endpoints separated by commas", FIELD(cluster.etcd),
                 "Where the hosts of the cluster find each other: https://HOST:PORT of etcd; http "
                 "on this host alone. Empty: no cluster, or cluster.hosts."),
        text_key("cluster.hosts", "names separated by commas", FIELD(cluster.hosts),
                 "The hosts of the cluster without etcd, this one too, 8 at most: none is ever "
                 "called lost."),
        text_key("cluster.name", "name", FIELD(cluster.name), "Which of the clusters of one etcd."),
        text_key("cluster.host_name", "name", FIELD(cluster.host_name),
                 "This host's name in the cluster, of which there may be one. Empty: that of the "
                 "machine."),
        text_key("cluster.listen", "HOST:PORT or unix:/PATH", FIELD(cluster.listen),
                 "Where the owner of a pool is reached by guests, with certificates on both sides; "
                 "a unix socket, of mode 0600, is for daemons on one host. Empty: no guests."),
        duration_key("cluster.ttl", std::chrono::seconds(2), std::chrono::minutes(5),
                     FIELD(cluster.ttl),
                     "Length of a host's lease; a host that is gone is called lost after twice "
                     "that and a second."),
        path_key("cluster.tls_ca", FIELD(cluster.tls_ca),
                 "Certificate of the authority that etcd's certificates are checked by."),
        path_key("cluster.tls_cert", FIELD(cluster.tls_cert), "This host's certificate."),
        path_key("cluster.tls_key", FIELD(cluster.tls_key), "The key of that certificate."),
        text_key("cluster.fence_command", "shell command", FIELD(cluster.fence_command),
                 "Ends a lost host for good, and exits with 0 only when it has: by its power, say. "
                 "$FABRIC_FENCE_HOST is its name. Empty: fabricctl hosts fence."),
        duration_key("cluster.fence_timeout", std::chrono::seconds(1), std::chrono::minutes(60),
                     FIELD(cluster.fence_timeout),
                     "A fence command that takes longer is ended, and counts as failed."),
    };
}

std::vector<ConfigKey> other_keys() {
    return {
        path_key("devices.file", FIELD(devices.file),
                 "Device file: the devices that processes may compute on, with speed, memory and "
                 "vGPU quota. Empty: none."),

        path_key("state.dir", FIELD(state.dir),
                 "Folder of the journal. Empty: state in the runtime folder."),
        choice_key(
            "state.damaged_journal", {"start-empty", "refuse"}, FIELD(state.damaged_journal),
            "What the daemon does with a damaged journal when it starts: start-empty keeps it "
            "as journal.bad and forgets all sessions; refuse ends with code 2."),
        duration_key("state.adopt_grace", std::chrono::milliseconds(0), std::chrono::minutes(60),
                     FIELD(state.adopt_grace),
                     "How long sessions have to come back after a restart of the daemon."),

        duration_key("telemetry.interval", std::chrono::milliseconds(10), std::chrono::minutes(1),
                     FIELD(telemetry.interval),
                     "Between two looks at the telemetry pages of all sessions."),
        duration_key("telemetry.stale_after", std::chrono::milliseconds(100),
                     std::chrono::minutes(60), FIELD(telemetry.stale_after),
                     "A session that has ended no step for so long counts as stale: nothing is "
                     "decided by its figures. Longer than a step."),
        flag_key("telemetry.gpus", FIELD(telemetry.gpus),
                 "Ask the NVIDIA driver (libnvidia-ml.so.1), if there is one, how busy GPUs are."),
        path_key("telemetry.metrics_socket", FIELD(telemetry.metrics_socket),
                 "Unix socket of mode 0600 on which HTTP gives the metrics for Prometheus. Empty: "
                 "none."),
        count_key("telemetry.metrics_port", 0, 65535, FIELD(telemetry.metrics_port),
                  "TCP port of 127.0.0.1 that does the same, for every user of the host; 0: none."),

        text_key("emulate.machine", "preset or path of a machine file", FIELD(emulate.machine),
                 "Machine whose memory the pool behaves like, as far as waiting can make it "
                 "(fabricd --emulate list names the presets). Empty: none."),
        count_key("emulate.slow_motion", 1, 1000, FIELD(emulate.slow_motion),
                  "Every access takes so many times as long as on that machine: shows machines "
                  "whose memory is faster than this one's."),

        choice_key("log.level", {"debug", "info", "warning", "error", "off"}, FIELD(log.level),
                   "Lines below this level are dropped."),
        path_key("log.file", FIELD(log.file),
                 "File to log to; SIGHUP opens it again. Empty: standard error."),
        choice_key("log.format", {"text", "json"}, FIELD(log.format),
                   "json: one object a line, with time, level and text."),
    };
}

std::vector<ConfigKey> make_keys() {
    std::vector<ConfigKey> keys;
    for (auto* section :
         {server_keys, pool_keys, limit_keys, other_keys, cluster_keys, control_keys}) {
        for (auto& key : section()) keys.push_back(std::move(key));
    }
    return keys;
}

#undef FIELD

}  // namespace

const std::vector<ConfigKey>& config_keys() {
    static const std::vector<ConfigKey> keys = make_keys();
    return keys;
}

}  // namespace fabricd

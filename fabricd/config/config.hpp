// What fabricd is configured by: one table of keys, read from a TOML file and from the command
// line.
// --help, --print-config, the checks and docs/configuration.md all come from that table.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/control/control_config.hpp"
#include "fabricd/net/cluster_config.hpp"
#include "fabricd/pool/limits.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Duration;

/// The values of all keys. The names are those of the table: `pool.huge_pages` is pool.huge_pages.
/// Those of [limits] and [arena] are in one struct, which the daemon takes as it is.
/// Plain data: what a key may hold is checked where it is read, what keys demand of each other in
/// check_config(), and what the host has where the value is used.
struct Config {
    struct Server {
        std::string runtime_dir;  // filled in by resolve_paths() when empty, as are the next two
        std::string socket;
        std::string admin_socket;
        unsigned socket_mode = 0600;
        std::string socket_group;
        std::vector<std::uint32_t> allow_uids;
    } server;

    struct Pool {
        std::string backend = "auto";
        Bytes capacity = 0;
        std::string huge_pages = "transparent";
        Bytes reserved_page_bytes = 2 * fabricshm::kMiB;
        std::int64_t numa_node = -1;
        std::string dax_device;
        std::vector<std::string> dax_devices;
        /// Whichever of the two is set; none: to be discovered.
        std::vector<std::string> devices() const {
            if (!dax_devices.empty() || dax_device.empty()) return dax_devices;
            return {dax_device};
        }
        std::string dax_uuid;
        bool dax_trust_users = false;
        std::int64_t hosts = 1;
        std::string owner;  // of another host; "": this daemon
        std::string visibility = "coherent";
        std::string visibility_proof;
        bool dax_take_over = false;  // --take-over only: in a file it would take it at each start
        bool dax_format = false;  // --format only: in a file it would wipe the device at each start
    } pool;

    Limits limits;

    struct Devices {
        std::string file;
    } devices;

    struct State {
        std::string dir;  // filled in by resolve_paths() when empty
        std::string damaged_journal = "start-empty";
        Duration adopt_grace = std::chrono::seconds(10);
    } state;

    struct Telemetry {
        Duration interval = std::chrono::milliseconds(100);
        Duration stale_after = std::chrono::seconds(10);
        bool gpus = true;
        std::string metrics_socket;
        std::int64_t metrics_port = 0;
    } telemetry;

    struct Emulate {
        std::string machine;  // a preset or the path of a machine file; "": none
        std::int64_t slow_motion = 1;
    } emulate;

    struct Log {
        std::string level = "info";
        std::string file;
        std::string format = "text";
    } log;

    ClusterConfig cluster;
    ControlConfig control;
};

/// One line for a person on what is wrong; nothing when all is well.
struct ErrorMessage : std::optional<std::string> {
    using std::optional<std::string>::optional;
    /// Of the host, and not of the configuration: trying again may help.
    bool is_of_host = false;
};

/// Whether trying again may help: a full disk, no memory, an error of a device.
bool is_of_host(const fabricshm::Error& error) noexcept;

/// What went wrong, and behind it the keys that it may be about.
ErrorMessage error_message_of(const fabricshm::Error& error, const std::string& keys);

/// One row of the table. Its texts go into --help and the docs as they are.
struct ConfigKey {
    std::string name;      // "pool.capacity": [pool] capacity = ..., --pool-capacity ...
    std::string kind;      // with the unit: "size in bytes", "duration", "one of auto, emu, ..."
    std::string range;     // "2 MiB to 64 TiB, or 0"; "" when the kind says it all
    std::string fallback;  // the default as it would be written
    std::string help;

    /// Takes the value from text; false when it is not of this kind or not in the range.
    std::function<bool(Config&, const std::string&)> set;
    /// The value as it would be written.
    std::function<std::string(const Config&)> get;
    bool is_list = false;   // written as an array in TOML
    bool is_quoted = true;  // written in quotes in TOML; of a list, each value
};

/// All keys, in the order in which they are shown.
const std::vector<ConfigKey>& config_keys();

/// What a key that was called `name` before is called now; "" for every other name. A file with the
/// former name is refused with a line that says the new one.
std::string renamed_key(const std::string& name);

/// That line, for an option of the command line under a former name ("--x" or "--x=1"); nothing for
/// other texts.
ErrorMessage refuse_former_option(const std::string& argument);

/// "--pool-capacity" for "pool.capacity".
std::string option_name(const std::string& key);
inline std::string option_name(const ConfigKey& key) {
    return option_name(key.name);
}

/// Sets one key from text, or says what would have been right. `where` goes in front of the line:
/// "fabricd.toml:3" or "command line".
/// Leaves the config as it was when the text is refused.
ErrorMessage set_key(Config& config, const ConfigKey& key, const std::string& text,
                     const std::string& where);

/// Sets what the TOML text says, up to the first mistake, after which the config is of no use: an
/// unknown section or key, a value of the wrong kind, or what is not TOML at all; the line starts
/// with `name`:line.
ErrorMessage read_toml(Config& config, const std::string& text, const std::string& name);

/// read_toml() of a file.
ErrorMessage read_config_file(Config& config, const std::string& path);

/// What no single key can say: sizes that contradict each other, and the isolation of a dax pool.
/// In the order of the checks: the first one that fails is reported, in terms of the keys to
/// change.
ErrorMessage check_config(const Config& config);

/// "pool.capacity (8GiB, now 16GiB), log.file (, now /var/log/x)": the keys whose values differ but
/// for those of `besides`; "" when none does.
std::string changed_keys(const Config& before, const Config& now,
                         const std::vector<std::string>& besides);

/// The configuration as a TOML file with the help as comments; reading it gives the same values.
std::string print_config(const Config& config);

/// The table of docs/configuration.md.
std::string config_table_markdown();

/// The manual page fabricd.toml(5).
std::string config_manual();

}  // namespace fabricd

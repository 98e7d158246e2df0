// The table of keys. One line of C++ per key; the helpers pair the parsing with the text on it, so
// that a range is written once.

#include <pwd.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "fabricd/config.hpp"

namespace fabricd {

namespace {

using fabricshm::format_bytes;
using fabricshm::kGiB;
using fabricshm::kMiB;

constexpr Bytes kTiB = 1024 * kGiB;

/// Reaches one field of a Config, for reading and for writing.
template <typename T>
using Field = T& (*)(Config&);

template <typename T>
const T& read(Field<T> field, const Config& config) {
    return field(const_cast<Config&>(config));  // the accessor only forms a reference
}

std::optional<std::int64_t> parse_integer(const std::string& text, int base = 10) {
    std::int64_t value = 0;
    const auto* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value, base);
    if (error != std::errc{} || stop != end || text.empty()) return std::nullopt;
    return value;
}

ConfigKey finish(ConfigKey key) {
    key.fallback = key.get(Config{});
    return key;
}

ConfigKey text_key(const char* name, const char* kind, Field<std::string> field, const char* help) {
    ConfigKey key{name, kind, "", "", help, {}, {}};
    key.set = [field](Config& config, const std::string& text) {
        // Control characters would break the one-line messages and have no use in any of these.
        if (std::any_of(text.begin(), text.end(),
                        [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
            return false;
        }
        field(config) = text;
        return true;
    };
    key.get = [field](const Config& config) { return read(field, config); };
    return finish(std::move(key));
}

ConfigKey path_key(const char* name, Field<std::string> field, const char* help) {
    ConfigKey key = text_key(name, "absolute path", field, help);
    key.set = [take = key.set](Config& config, const std::string& text) {
        return (text.empty() || text[0] == '/') && take(config, text);
    };
    return key;
}

ConfigKey choice_key(const char* name, std::vector<std::string> words, Field<std::string> field,
                     const char* help) {
    std::string kind = "one of";
    for (const auto& word : words) kind += (word == words.front() ? " " : ", ") + word;
    ConfigKey key{name, kind, "", "", help, {}, {}};
    key.set = [words, field](Config& config, const std::string& text) {
        if (std::find(words.begin(), words.end(), text) == words.end()) return false;
        field(config) = text;
        return true;
    };
    key.get = [field](const Config& config) { return read(field, config); };
    return finish(std::move(key));
}

/// `low` to `high` bytes, and 0 where `zero` says what that means.
ConfigKey size_key(const char* name, Bytes low, Bytes high, const char* zero, Field<Bytes> field,
                   const char* help) {
    std::string range = format_bytes(low) + " to " + format_bytes(high);
    if (zero != nullptr) range += std::string(", or 0: ") + zero;
    ConfigKey key{name, "size in bytes, K, M, G or T", range, "", help, {}, {}};
    key.set = [=](Config& config, const std::string& text) {
        const auto bytes = fabricshm::parse_bytes(text);
        if (!bytes.ok()) return false;
        const bool is_special = zero != nullptr && *bytes == 0;
        if (!is_special && (*bytes < low || *bytes > high)) return false;
        field(config) = *bytes;
        return true;
    };
    key.get = [field](const Config& config) {
        const Bytes bytes = read(field, config);
        // In the largest unit that leaves no fraction: what is printed has to read back the same.
        for (const auto& [unit, suffix] : {std::pair{kTiB, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}}) {
            if (bytes != 0 && bytes % unit == 0) return std::to_string(bytes / unit) + suffix;
        }
        return std::to_string(bytes);
    };
    return finish(std::move(key));
}

ConfigKey count_key(const char* name, std::int64_t low, std::int64_t high,
                    Field<std::int64_t> field, const char* help) {
    ConfigKey key{name, "whole number", std::to_string(low) + " to " + std::to_string(high),
                  "",   help,           {},
                  {}};
    key.set = [=](Config& config, const std::string& text) {
        const auto value = parse_integer(text);
        if (!value || *value < low || *value > high) return false;
        field(config) = *value;
        return true;
    };
    key.get = [field](const Config& config) { return std::to_string(read(field, config)); };
    key.is_quoted = false;
    return finish(std::move(key));
}

ConfigKey duration_key(const char* name, std::chrono::milliseconds low,
                       std::chrono::milliseconds high, Field<Duration> field, const char* help) {
    const auto range = fabricshm::format_duration(low) + " to " + fabricshm::format_duration(high);
    ConfigKey key{name, "duration in us, ms, s or min", range, "", help, {}, {}};
    key.set = [=](Config& config, const std::string& text) {
        const auto length = fabricshm::parse_duration(text);
        if (!length.ok() || *length < low || *length > high) return false;
        field(config) = *length;
        return true;
    };
    key.get = [field](const Config& config) {
        const auto length =
            std::chrono::duration_cast<std::chrono::microseconds>(read(field, config)).count();
        if (length % 1000000 == 0) return std::to_string(length / 1000000) + "s";
        if (length % 1000 == 0) return std::to_string(length / 1000) + "ms";
        return std::to_string(length) + "us";
    };
    return finish(std::move(key));
}

ConfigKey flag_key(const char* name, Field<bool> field, const char* help) {
    ConfigKey key{name, "true or false", "", "", help, {}, {}};
    key.set = [field](Config& config, const std::string& text) {
        if (text != "true" && text != "false") return false;
        field(config) = text == "true";
        return true;
    };
    key.get = [field](const Config& config) {
        return std::string(read(field, config) ? "true" : "false");
    };
    key.is_quoted = false;
    return finish(std::move(key));
}

ConfigKey mode_key(const char* name, Field<unsigned> field, const char* help) {
    ConfigKey key{name, "octal file mode", "0600 to 0777", "", help, {}, {}};
    key.set = [field](Config& config, const std::string& text) {
        const auto mode = parse_integer(text, 8);
        if (!mode || *mode < 0600 || *mode > 0777) return false;
        field(config) = static_cast<unsigned>(*mode);
        return true;
    };
    key.get = [field](const Config& config) {
        char text[16];
        std::snprintf(text, sizeof text, "%04o", read(field, config));
        return std::string(text);
    };
    return finish(std::move(key));
}

std::optional<std::uint32_t> parse_user(const std::string& text) {
    if (const auto number = parse_integer(text)) {
        // 2^32 - 1 means "no user" to the kernel.
        if (*number < 0 || *number >= 0xffffffffLL) return std::nullopt;
        return static_cast<std::uint32_t>(*number);
    }
    const ::passwd* found = ::getpwnam(text.c_str());  // start-up only: there is one thread
    if (found == nullptr) return std::nullopt;
    return found->pw_uid;
}

ConfigKey users_key(const char* name, Field<std::vector<std::uint32_t>> field, const char* help) {
    ConfigKey key{name, "list of user names or ids", "", "", help, {}, {}};
    key.is_list = true;
    key.set = [field](Config& config, const std::string& text) {
        std::vector<std::uint32_t> users;
        std::istringstream words(text);
        for (std::string word; std::getline(words, word, ',');) {
            const auto user = parse_user(word);
            if (!user) return false;
            users.push_back(*user);
        }
        field(config) = std::move(users);
        return true;
    };
    key.get = [field](const Config& config) {
        std::string text;
        for (const auto user : read(field, config)) {
            text += (text.empty() ? "" : ",") + std::to_string(user);
        }
        return text;
    };
    return finish(std::move(key));
}

#define FIELD(member)              \
    [](Config & config) -> auto& { \
        return config.member;      \
    }

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
        text_key("pool.dax_uuid", "UUID", FIELD(pool.dax_uuid),
                 "Refuse the device unless its catalogue has this UUID. Empty: any."),
        flag_key("pool.dax_trust_users", FIELD(pool.dax_trust_users),
                 "Admit several users to a dax pool, all of whom can reach all of its arenas."),
        count_key("pool.hosts", 1, 1024, FIELD(pool.hosts),
                  "Hosts that reach the pool. With more than one fabricd starts only with a proven "
                  "pool.visibility."),
        choice_key(
            "pool.visibility", {"coherent", "clwb", "clflushopt", "clflush", "nt"},
            FIELD(pool.visibility),
            "How writes become visible to the other hosts: by the hardware, or by flushing."),
        path_key(
            "pool.visibility_proof", FIELD(pool.visibility_proof),
            "Result file of fabric-litmus for this machine, device and profile, written by two "
            "hosts."),
    };
}

std::vector<ConfigKey> limit_keys() {
    return {
        size_key("arena.default_bytes", 2 * kMiB, 64 * kTiB, nullptr, FIELD(arena.default_bytes),
                 "Size of an arena whose maker names none."),
        size_key("arena.max_bytes", 2 * kMiB, 64 * kTiB, "the pool is the limit",
                 FIELD(arena.max_bytes), "Largest arena."),

        size_key("limits.user_quota", 2 * kMiB, 64 * kTiB, "the pool is the limit",
                 FIELD(limits.user_quota), "Bytes of all arenas of one user together."),
        count_key("limits.sessions", 1, 100000, FIELD(limits.sessions), "Sessions in all."),
        count_key("limits.sessions_per_user", 1, 100000, FIELD(limits.sessions_per_user),
                  "Sessions of one user."),
        count_key("limits.arenas_per_user", 1, 100000, FIELD(limits.arenas_per_user),
                  "Arenas of one user."),
        count_key("limits.arenas_per_session", 1, 1000, FIELD(limits.arenas_per_session),
                  "Arenas that one session has open."),
        count_key("limits.regions_per_session", 1, 10000000, FIELD(limits.regions_per_session),
                  "Regions that one session owns."),
        count_key("limits.groups_per_arena", 1, 100000, FIELD(limits.groups_per_arena),
                  "Groups in one arena."),
    };
}

std::vector<ConfigKey> other_keys() {
    return {
        path_key("devices.file", FIELD(devices.file),
                 "Device file: the devices that processes may compute on, with speed, memory and "
                 "vGPU quota. Empty: none."),

        path_key("state.dir", FIELD(state.dir),
                 "Folder of the journal. Empty: state in the runtime folder."),
        duration_key("state.adopt_grace", std::chrono::milliseconds(0), std::chrono::minutes(60),
                     FIELD(state.adopt_grace),
                     "How long sessions have to come back after a restart of the daemon."),

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
    };
}

std::vector<ConfigKey> make_keys() {
    std::vector<ConfigKey> keys;
    for (auto* section : {server_keys, pool_keys, limit_keys, other_keys}) {
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

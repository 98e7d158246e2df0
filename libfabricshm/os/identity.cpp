#include "libfabricshm/os/identity.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>

#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricshm {

namespace {

constexpr std::string_view kHeading = "fabric-identity 1";
constexpr std::size_t kMaxLine = 1024;

bool is_printable(char letter) {
    return letter >= 0x20 && letter <= 0x7e;
}

std::string printable(std::string text) {
    std::ranges::replace_if(
        text, [](char letter) { return !is_printable(letter); }, '?');
    return text;
}

// A host's name is one word, so that the line can be taken apart at its blanks.
std::string word_of(std::string text) {
    text = printable(std::move(text));
    std::ranges::replace(text, ' ', '?');
    return text.empty() ? "?" : text;
}

std::string hex_of(std::uint64_t number) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
    return text;
}

std::string hex_of(const std::array<std::uint8_t, 16>& bytes) {
    std::string text;
    for (const std::uint8_t byte : bytes) {
        char pair[3];
        std::snprintf(pair, sizeof pair, "%02x", byte);
        text += pair;
    }
    return text;
}

// All of the text, in the digits that hex_of() writes.
std::optional<std::uint64_t> number_in(std::string_view text) {
    std::uint64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number, 16);
    if (error != std::errc{} || at != end) return std::nullopt;
    return number;
}

bool read_number(std::string_view text, std::uint64_t& number) {
    const auto read = text.size() == 16 ? number_in(text) : std::nullopt;
    number = read.value_or(0);
    return read.has_value();
}

bool read_bytes(std::string_view text, std::array<std::uint8_t, 16>& bytes) {
    if (text.size() != 2 * bytes.size()) return false;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        const auto byte = number_in(text.substr(2 * i, 2));
        if (!byte) return false;
        bytes[i] = static_cast<std::uint8_t>(*byte);
    }
    return true;
}

// The next word, which is taken with the blank behind it.
std::string_view take_word(std::string_view& text) {
    const std::size_t end = text.find(' ');
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return word;
}

std::string read_text(const char* path) {
    const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
    char text[256];
    const ssize_t length = file ? ::read(file.get(), text, sizeof text) : 0;
    std::string_view read(text, length > 0 ? static_cast<std::size_t>(length) : 0);
    return std::string(read.substr(0, read.find('\n')));
}

template <typename Bytes>
bool is_known(const Bytes& bytes) {
    return bytes != Bytes{};
}

std::string short_hex(std::uint64_t number) {
    return hex_of(number).substr(0, 8);
}

std::string host_words(const HostIdentity& host) {
    return host.name + " (boot " + short_hex(host.boot) + ")";
}

std::string pool_words(const PoolIdentity& pool) {
    return is_known(pool.uuid) ? "the pool " + hex_of(pool.uuid) : "the host's memory";
}

std::string daemon_words(const DaemonIdentity& daemon) {
    return daemon.place + " (instance " + hex_of(daemon.instance).substr(0, 8) + ")";
}

}  // namespace

std::uint64_t detail::hash_machine_id(std::string_view text) noexcept {
    if (text.empty()) return 0;
    std::uint64_t hash = 0x66616272696364;  // "fabricd": other programs' hashes are not ours
    for (const char letter : text) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
        // Without the mixing the last letters could be read off the low bits.
        hash ^= hash >> 29;
    }
    return hash == 0 ? 1 : hash;
}

HostIdentity own_host() {
    HostIdentity host;
    host.machine = detail::hash_machine_id(read_text("/etc/machine-id"));
    host.boot = own_kernel();
    const auto space = own_pid_namespace();
    host.pid_namespace = space.ok() ? space.value() : 0;
    host.name = word_of(read_text("/proc/sys/kernel/hostname"));
    return host;
}

Result<std::array<std::uint8_t, 16>> instance_of(const std::string& folder) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return error_from_errno(errno, "daemon's instance");
    // The inode is the folder's own on its file system, and the device the file system's own on
    // this boot: neither says anything on another host.
    const std::uint64_t place = static_cast<std::uint64_t>(status.st_ino) ^
                                (static_cast<std::uint64_t>(status.st_dev) << 40);
    const std::uint64_t boot = own_kernel();
    std::array<std::uint8_t, 16> instance{};
    std::memcpy(instance.data(), &place, sizeof place);
    std::memcpy(instance.data() + sizeof place, &boot, sizeof boot);
    return instance;
}

std::string memory_at(const void* base) {
    std::ostringstream wanted;
    wanted << std::hex << reinterpret_cast<std::uintptr_t>(base) << '-';
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.rfind(wanted.str(), 0) != 0) continue;
        std::istringstream fields(line);
        std::string range, modes, offset, device, inode;
        fields >> range >> modes >> offset >> device >> inode;
        return offset + ' ' + device + ' ' + inode;
    }
    return {};
}

std::string encode_identity(const Identity& identity) {
    const HostIdentity& host = identity.host;
    std::string line = std::string(kHeading) + ' ' + hex_of(host.machine) + ' ' +
                       hex_of(host.boot) + ' ' + hex_of(host.pid_namespace) + ' ' +
                       hex_of(identity.daemon.instance) + ' ' + hex_of(identity.pool.uuid) + ' ' +
                       word_of(host.name) + ' ' + printable(identity.daemon.place);
    line.resize(std::min(line.size(), kMaxLine));
    return line;
}

std::optional<Identity> decode_identity(std::string_view line) {
    if (line.size() > kMaxLine || !std::ranges::all_of(line, is_printable)) return std::nullopt;
    if (!line.starts_with(kHeading)) return std::nullopt;
    line.remove_prefix(kHeading.size());
    if (!take_word(line).empty()) return std::nullopt;
    Identity identity;
    const bool read = read_number(take_word(line), identity.host.machine) &&
                      read_number(take_word(line), identity.host.boot) &&
                      read_number(take_word(line), identity.host.pid_namespace) &&
                      read_bytes(take_word(line), identity.daemon.instance) &&
                      read_bytes(take_word(line), identity.pool.uuid);
    identity.host.name = take_word(line);
    if (!read || identity.host.name.empty()) return std::nullopt;
    identity.daemon.place = line;
    return identity;
}

std::optional<std::string> difference_of(const HostIdentity& one, const std::string& mine,
                                         const HostIdentity& other, const std::string& theirs) {
    // By the boot: containers of one host may have names and machine ids of their own, and machines
    // made from one image the same.
    if (one.boot == 0 || other.boot == 0 || one.boot == other.boot) return std::nullopt;
    std::string text = "they are on two hosts: " + mine + " on " + host_words(one) + ", " + theirs +
                       " on " + host_words(other);
    if (one.machine != 0 && one.machine == other.machine) {
        text +=
            "; both have one machine id, so that one is a copy of the other, or it was started "
            "again in between";
    }
    return text;
}

std::optional<std::string> difference_of(const Identity& one, const std::string& mine,
                                         const Identity& other, const std::string& theirs) {
    // One daemon for several hosts, each of which reaches the device.
    const bool is_shared_pool = is_known(one.pool.uuid) && one.pool == other.pool &&
                                is_known(one.daemon.instance) &&
                                one.daemon.instance == other.daemon.instance;
    if (is_shared_pool) return std::nullopt;
    if (auto hosts = difference_of(one.host, mine, other.host, theirs)) return hosts;
    // A daemon that says nothing of itself says nothing of its pool either.
    const bool both_known = is_known(one.daemon.instance) && is_known(other.daemon.instance);
    if (!both_known) return std::nullopt;
    if (one.pool != other.pool) {
        return "their memory is of two pools: that of " + mine + " of " + pool_words(one.pool) +
               " at " + one.daemon.place + ", that of " + theirs + " of " + pool_words(other.pool) +
               " at " + other.daemon.place;
    }
    if (one.daemon.instance == other.daemon.instance) return std::nullopt;
    return "they are attached to two daemons: " + mine + " to " + daemon_words(one.daemon) + ", " +
           theirs + " to " + daemon_words(other.daemon);
}

}  // namespace fabricshm

// What hosts write into the cluster store about themselves and about each other, as text.
// docs/hosts.md.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fabricd {

/// One life of a host in the cluster. Rises for ever: whatever carries an older one is refused.
using Incarnation = std::uint64_t;

/// What is read that is larger was forged: from the time of day they are 2^51, and rise by 2^20 a
/// second. Sums of two of them are numbers still.
inline constexpr Incarnation kMaxIncarnation = std::uint64_t{1} << 62;

/// `hosts/NAME`: that host says so itself, and the record goes with its lease.
struct HostRecord {
    /// 0: the one that the store gave the record when it was made. Else the one that the host had
    /// before the store lost its data.
    Incarnation incarnation = 0;
    std::uint64_t machine =
        0;  // a hash; together with another boot it proves that the one before has ended
    std::uint64_t boot = 0;
    std::uint64_t instance = 0;  // of the daemon: random, new at each start
    std::string pool;            // for people: "emu, 64 GiB"
    std::string address;         // of its fabric, for ranks; "": none
    std::uint64_t ttl_ms = 0;    // of its lease, which need not be that of other hosts

    bool operator==(const HostRecord&) const = default;
};

/// `fence/NAME/INCARNATION`: without a lease, since it must outlive all of them.
struct FenceRecord {
    bool is_fenced = false;  // false: lost, and nothing is known of what it still does
    std::string by;          // the host that wrote it
    std::string how;         // "command", "boot", "left", "self", "operator"
    // Of the incarnation that it is about, for a daemon that has never seen its record. 0: not
    // known.
    std::uint64_t machine = 0;
    std::uint64_t boot = 0;

    bool operator==(const FenceRecord&) const = default;
};

/// Lines of name=value under a heading with a version. What is no printable ASCII becomes '?'.
std::string encode(const HostRecord& record);
std::string encode(const FenceRecord& record);

/// Digits alone, 1 to kMaxIncarnation. False, and `incarnation` is as it was: the text is no such.
bool read_incarnation(std::string_view text, Incarnation& incarnation);

/// Nothing: it is no such record, of this version. Names that are not known are passed over, so
/// that a later version may add some. Any text is safe to give.
std::optional<HostRecord> decode_host(std::string_view text);
std::optional<FenceRecord> decode_fence(std::string_view text);

/// 1 to 63 of letters, digits, '.', '_' and '-', not beginning with '.' or '-': names of hosts and
/// clusters are parts of keys, and of a command's environment.
bool is_host_name(std::string_view text);

}  // namespace fabricd

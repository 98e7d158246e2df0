// Where a rank is: which host, which daemon, which pool. Ranks that come together compare these,
// and one that cannot meet the others says where both are.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// One kernel from its start to its end. 0: not known, and never a difference.
struct HostIdentity {
    /// Hashed, since /etc/machine-id is not to be shown outside of the host. Containers may have
    /// one of their own, and clones of a machine the same: for words alone.
    std::uint64_t machine = 0;
    std::uint64_t boot = 0;           // of this kernel, at each start another
    std::uint64_t pid_namespace = 0;  // containers of one host differ in it, and may meet
    std::string name;                 // for people: machines made from one image have the same

    bool operator==(const HostIdentity&) const = default;
};

/// One fabricd, which is the same when it is started again over the same state. All zero: not
/// known.
struct DaemonIdentity {
    std::array<std::uint8_t, 16> instance{};  // see instance_of()
    std::string place;                        // for people: socket and process

    bool operator==(const DaemonIdentity&) const = default;
};

/// Memory that arenas are cut from. All zero: the ordinary memory of its host.
struct PoolIdentity {
    std::array<std::uint8_t, 16> uuid{};  // of a device, as in its catalogue

    bool operator==(const PoolIdentity&) const = default;
};

struct Identity {
    HostIdentity host;
    DaemonIdentity daemon;
    PoolIdentity pool;

    bool operator==(const Identity&) const = default;
};

/// The host of this process. Reads three small files; what cannot be read stays unknown.
HostIdentity own_host();

/// The instance of the daemon whose state is in `folder`: this boot and that folder. Two daemons
/// never have one folder, and one that is restarted keeps it, with its arenas. kNotFound without
/// it.
Result<std::array<std::uint8_t, 16>> instance_of(const std::string& folder);

/// The file that is mapped from `base` on, as this kernel names it: where in it, device and inode.
/// The same in all processes that map it, in words without line ends; "" when nothing begins there.
/// Reads /proc/self/maps.
std::string memory_at(const void* base);

/// One line of printable characters, for the store that ranks meet in; and back. Nothing: it is no
/// such line of this version. Control characters in the texts for people become '?'.
std::string encode_identity(const Identity& identity);
std::optional<Identity> decode_identity(std::string_view line);

/// Why two ranks cannot meet in one arena, in one sentence that has both places: two hosts, two
/// pools or two daemons, the first of these. Nothing: they can, as far as is known.
/// `mine` and `theirs` are how the sentence calls the two: "rank 3" and "rank 0".
std::optional<std::string> difference_of(const Identity& one, const std::string& mine,
                                         const Identity& other, const std::string& theirs);

/// The same for the hosts alone, which is known before there is a daemon.
std::optional<std::string> difference_of(const HostIdentity& one, const std::string& mine,
                                         const HostIdentity& other, const std::string& theirs);

namespace detail {
/// For tests: what /etc/machine-id becomes. 0 for an empty text.
std::uint64_t hash_machine_id(std::string_view text) noexcept;
}  // namespace detail

}  // namespace fabricshm

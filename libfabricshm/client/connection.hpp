// Connecting to fabricd and greeting it: what happens before calls may be made.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm {

/// A session's identity, as the daemon gave it in its first answer. An id of 0: not yet.
/// The token proves to a daemon that a process is the session that it says it is; it never leaves
/// this process but for that.
struct SessionIdentity {
    std::uint64_t id = 0;
    std::array<std::uint8_t, 16> token{};
    std::uint64_t daemon_epoch = 0;
    std::array<std::uint8_t, 16> instance{};  // of the daemon
    std::array<std::uint8_t, 16> pool{};      // its UUID
    std::array<char, 16> visibility{};        // its profile; "": of one host
    std::uint16_t last_type = 0;              // see proto::Hello
};

/// Whether the daemon takes such a request. It hangs up on one that it does not know.
inline bool knows(const SessionIdentity& daemon, proto::Type type) noexcept {
    return type <= proto::Type::kTrace || static_cast<std::uint16_t>(type) <= daemon.last_type;
}

/// Whether arenas are ranges of a device, which are granted again when their sessions have ended;
/// else each is memory of its own.
inline bool is_on_device(const SessionIdentity& identity) noexcept {
    return identity.pool != std::array<std::uint8_t, 16>{};
}

/// The descriptors of the arenas that a session has open, by id. A daemon that was restarted may
/// have nothing but these to find its arenas again.
using ArenaDescriptors = std::map<std::uint64_t, std::shared_ptr<const Fd>>;

/// Of arenas on several devices: the descriptors after the first, in their order.
using OtherDescriptors = std::map<std::uint64_t, std::shared_ptr<const std::vector<Fd>>>;

/// Connects to the first of `paths` that has a listener and moves it to the front, see fork_guard.
/// kDaemon when none has.
Result<std::shared_ptr<const UnixSocket>> connect_first(std::vector<std::string>& paths,
                                                        TimePoint deadline);

/// True when the folder of one of them is there: a daemon that is not may come back, as it does
/// within a moment when it is restarted.
bool may_come_back(const std::vector<std::string>& paths);

/// How a session introduces itself.
struct Introduction {
    std::string label;   // for people; cut and made printable
    std::string device;  // what the process computes on; "": nothing that is configured
};

/// What the daemon reported of its own accord before a thread read the connection: memory that the
/// hardware lost. The session has to learn it, also when the greeting failed afterwards.
using LossNews = std::vector<proto::Region>;

/// Sends Hello and takes the answer into `identity`. With an id in it: goes on as that session;
/// kNotFound when the daemon does not know it, or not the device. kInvalid for a device's name that
/// can be none.
Result<void> greet(const UnixSocket& socket, const Introduction& introduction,
                   SessionIdentity& identity, LossNews& news, TimePoint deadline);

/// Presents each arena, with all its descriptors, to a daemon that was restarted. One that it
/// refuses is logged and left out: the others, and the memory itself, go on working. Fails when the
/// connection does.
Result<void> present_arenas(const UnixSocket& socket, const ArenaDescriptors& arenas,
                            const OtherDescriptors& others, LossNews& news, TimePoint deadline);

/// A session's own pages of published arenas, by arena.
struct OwnPinPage {
    std::uint64_t number = 0;
    std::shared_ptr<const Fd> descriptor;
};
using OwnPinPages = std::map<std::uint64_t, OwnPinPage>;

/// Presents them, after the arenas that they belong to; fails likewise.
Result<void> present_pin_pages(const UnixSocket& socket, const OwnPinPages& pages, LossNews& news,
                               TimePoint deadline);

}  // namespace fabricshm

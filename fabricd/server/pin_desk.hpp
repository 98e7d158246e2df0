// PinDesk: what sessions ask about the pages of published arenas. docs/pool.md, docs/protocol.md.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fabricd/pool/registry.hpp"
#include "fabricd/server/outbox.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// Why a daemon with this kind of pool publishes no arenas; "": it does.
std::string why_nothing_is_published(std::string_view kind, bool dax_trust_users);

/// Whether pin_reply() serves it.
bool is_about_pins(fabricshm::proto::Type type) noexcept;

/// Whether it concerns a published arena, of which sessions of other hosts have no part: the pins
/// of a process are words that its own host's caches hold.
bool is_of_one_host(const fabricshm::proto::Message& request) noexcept;

/// The reply, with the descriptor that goes with it. `descriptors` are what came with the request;
/// they stay the caller's to close.
Packet pin_reply(Registry& registry, SessionId session, const fabricshm::proto::Message& request,
                 const std::vector<fabricshm::Fd>& descriptors);

}  // namespace fabricd

// From a checked message to the registry and back. No sockets: what arrives and what goes out are
// values, so every request can be tested without a process at the other end.

#pragma once

#include <optional>

#include "fabricd/pool/registry.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// Serves any request but kHello and kBye, which are about the connection, and the two for pages.
/// `request` has passed proto::check_request(); `files` are what came with it, if anything.
/// Returns the reply, or nothing when it comes through Registry::take_answers(). On the control
/// thread; never blocks: what takes long is begun here and answered later. While the journal can't
/// be written nothing is granted, and nothing is reclaimed of which the next daemon would not
/// know.
std::optional<fabricshm::proto::Message> serve(Registry& registry, SessionId session,
                                               const fabricshm::proto::Message& request,
                                               fabricshm::PresentedFiles files, TimePoint now);

/// The message for a deferred answer.
fabricshm::proto::Message reply_of(const Answer& answer);

}  // namespace fabricd

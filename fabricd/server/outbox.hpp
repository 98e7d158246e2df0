// Outbox: the replies of one connection, and those that wait until it reads. docs/failure_model.md.

#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "fabricd/pool/ids.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// Replies that a session does not read wait in its socket, 50 or so, then in the daemon. Those are
/// answers to what it had asked before, since nothing more is read of it: at most one for each
/// request that a session may let wait.
struct ReplyLimits {
    fabricshm::Duration named_after = std::chrono::seconds(5);  // in the log
    std::size_t max_held = 4096;                                // one more ends the connection
};

/// A reply, and what goes with it: an arena's descriptors, which are looked up when it is sent, or
/// a page's.
struct Packet {
    fabricshm::proto::Message message;
    std::optional<ArenaId> arena;
    fabricshm::Fd page;
    bool has_links = false;
};

/// Used by the control thread only; never waits for the peer.
class Outbox {
  public:
    /// Of an arena, in the order of its files. None: it is gone.
    using DescriptorsOf = std::function<std::vector<int>(ArenaId)>;

    /// Before the first reply: so that the kernel's "writable" (EPOLLOUT) means that the peer keeps
    /// up well enough to be sent descriptors.
    static void bound_unread(const fabricshm::UnixSocket& socket) noexcept;

    /// Sends it, or holds it behind what is held. A peer that has shut down hears no more, which is
    /// no error. kBusy when too many are held, kSystem when it can't be sent at all.
    fabricshm::Result<void> push(const fabricshm::UnixSocket& socket, Packet packet,
                                 const DescriptorsOf& descriptors_of, int links,
                                 const ReplyLimits& limits);

    /// Sends what was held as far as the peer has made room for it. Fails as push().
    fabricshm::Result<void> flush(const fabricshm::UnixSocket& socket,
                                  const DescriptorsOf& descriptors_of, int links);

    /// Nothing is held: the peer may be asked for more.
    bool empty() const noexcept { return held_.empty(); }
    std::size_t size() const noexcept { return held_.size(); }

  private:
    static fabricshm::Result<void> attempt(const fabricshm::UnixSocket& socket,
                                           const Packet& packet,
                                           const DescriptorsOf& descriptors_of, int links);

    std::list<Packet> held_;
};

}  // namespace fabricd

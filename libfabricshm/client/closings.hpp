// Closings: which arenas a session has closed, and which groups it has left, without having heard
// that the daemon did so.

#pragma once

#include <deque>

#include "libfabricshm/proto/messages.hpp"

namespace fabricshm {

/// A daemon that ends may have a closing in its queue, unread, and an arena that is not closed is
/// not given back while the session lasts; a group that is not left keeps its name. Numbers of
/// arenas and groups are never used twice, so a closing may come twice: it is sent again over the
/// next connection. Not thread-safe.
class Closings {
  public:
    /// Keeps it if it closes an arena or leaves a group.
    void note_sent(const proto::Message& request);
    /// Forgets what needs not be sent again.
    void note_answer(const proto::Message& reply);
    /// Puts all of them before `posted`, in their order: the same arena may be opened again, and a
    /// group of the same name joined, after.
    void send_again(std::deque<proto::Message>& posted);
    void clear() noexcept { sent_.clear(); }

  private:
    std::deque<proto::Message> sent_;
};

}  // namespace fabricshm

// CachedGrants: which grants have to leave the caches of the owner's host before the session hears
// of them, where other hosts share the pool with caches of their own. docs/hosts.md.

#pragma once

#include <optional>

#include "fabricd/pool/books.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// Used by the control thread only.
class CachedGrants {
  public:
    explicit CachedGrants(Books& books) noexcept : books_(books) {}

    /// Of a region that `session` is about to hear of: where in the pool it lies, if the session is
    /// of another host and this host's caches may hold something of it. The caller writes it out
    /// before it answers, for else that would come out over what the session stores. Said once.
    std::optional<OpenRange> take(SessionId session, const fabricshm::proto::Region& region);

    /// It could not be written out.
    void put_back(const fabricshm::proto::Region& region);

  private:
    Books& books_;
};

}  // namespace fabricd

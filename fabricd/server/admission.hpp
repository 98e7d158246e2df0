// Admission: which users may attach at all.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/pool/ids.hpp"

namespace fabricd {

/// Root, the daemon's own user, the users of the list, and members of the socket's group.
class Admission {
  public:
    /// kInvalid when there is no group of that name; "" for none.
    static Result<Admission> make(std::vector<std::uint32_t> uids, const std::string& group);

    /// `socket` is the connection, asked for the peer's supplementary groups when it matters.
    bool admits(std::uint32_t uid, std::uint32_t gid, int socket) const;

    bool has_group() const noexcept { return has_group_; }
    std::uint32_t group() const noexcept { return group_; }

  private:
    std::vector<std::uint32_t> uids_;
    std::uint32_t group_ = 0;
    bool has_group_ = false;
};

/// Supplementary groups of the process at the other end, as they were when it connected; none when
/// the kernel does not say.
std::vector<std::uint32_t> groups_of_peer(int socket);

}  // namespace fabricd

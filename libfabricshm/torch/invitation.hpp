// Invitation: what rank 0 of a process group publishes in torch's store for the other ranks.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fabricshm::torch_backend {

struct Invitation {
    std::string host;    // os/identity.hpp, as it is encoded there
    std::string daemon;  // in words
    std::string memory;  // which file the arena is: two daemons have arenas of one name
    std::string arena;
    std::string group;
    std::string error;  // not empty: rank 0 could not open the arena
    bool operator==(const Invitation&) const = default;
};

/// Line ends inside a field but the error become blanks.
std::vector<std::uint8_t> encode_invitation(const Invitation& invitation);

/// Of bytes that anything with access to the store may have written. Nothing: they are no
/// invitation of this version. No field of a result has control characters, but for line ends in
/// the error.
std::optional<Invitation> decode_invitation(std::span<const std::uint8_t> bytes);

}  // namespace fabricshm::torch_backend

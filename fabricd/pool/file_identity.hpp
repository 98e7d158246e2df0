// FileIdentity: what distinguishes one arena's file from every other file.

#pragma once

#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// Inode numbers of memfds are not used again while the file lives, and the journal's ones do live
/// as long as any session holds them: equal identity is the same file.
struct FileIdentity {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::uint64_t bytes = 0;
    std::uint32_t seals = 0;  // ~0: the file can't have any (a device)
    bool operator==(const FileIdentity&) const = default;
};

/// Of a descriptor that may come from a client: nothing but fstat() and the seals is asked of it.
/// Fails only when the descriptor is none.
fabricshm::Result<FileIdentity> identity_of(const fabricshm::Fd& fd);

}  // namespace fabricd

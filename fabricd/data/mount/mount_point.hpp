// A mount point of fabric-mount: mounting, unmounting, and what is there.

#pragma once

#include <cstdint>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

using fabricshm::Result;

enum class MountState {
    kNothing,  // a folder without a mount of ours
    kLive,
    kDead,   // ours, without a process behind it: everything there is ENOTCONN
    kHung,   // ours, and does not answer
    kOther,  // another file system's mount
};

struct MountFacts {
    MountState state = MountState::kNothing;
    std::uint32_t connection = 0;  // its folder in /sys/fs/fuse/connections; of kLive and kDead
};

/// The folder without links and "..", of which the last name may be a dead mount.
Result<std::string> canonical_mount_point(const std::string& path);

/// `path` is canonical. Asks a mount of ours whether it is alive, for two seconds at most.
/// kNotFound: there is no such folder.
Result<MountFacts> look_at_mount(const std::string& path);

/// kExists: the folder has something in it, which a mount would hide.
Result<void> check_empty(const std::string& path);

/// Mounts; the device's descriptor, close-on-exec. By mount(2), or without CAP_SYS_ADMIN by
/// fusermount3. With `allow_other` all users may enter, otherwise this one alone. kDenied: neither
/// may be done; kUnsupported: no /dev/fuse here.
Result<fabricshm::Fd> mount_fuse(const std::string& path, bool allow_other);

/// Takes it away at once; what is open there stays as it is as long as the server serves it.
Result<void> unmount_lazily(const std::string& path);

}  // namespace fabricd

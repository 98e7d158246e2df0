// A folder that nothing leads out of: what is opened below it, whatever links say (openat2(2),
// RESOLVE_BENEATH).

#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "fabricd/data/silo/silo.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// The folder itself. kNotFound, kDenied: it is not there, or not for this user.
Result<fabricshm::Fd> open_silo_root(const std::string& place);

/// `path` below `root`, close-on-exec; never waits for the writer of a FIFO. `mode` is for files
/// that are made.
Result<fabricshm::Fd> open_beneath(int root, const std::string& path, int flags, mode_t mode = 0);

std::uint64_t nanoseconds_of(const timespec& time) noexcept;

/// Size, time of change of content and of inode, and inode.
FileFacts facts_of_file(const struct stat& status) noexcept;

/// What an errno means for a path of a silo, in words.
Error folder_error(int saved_errno, const std::string& path, const char* step);

}  // namespace fabricd

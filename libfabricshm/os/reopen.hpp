// Another descriptor of the same file, with other rights.

#pragma once

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

/// For reading alone. Of a file for which the caller has not kept_to_owner(), its holder can open
/// it for writing again through /proc.
Result<Fd> open_read_only(const Fd& file);

/// Only the owner of the file can open it from now on, and for reading: a process of another user
/// that holds a descriptor for reading can't map it writable, open it for writing through /proc,
/// nor punch holes. Descriptors that are there keep their rights. For files of this process's own
/// user.
Result<void> keep_to_owner(const Fd& file);

/// For reading and writing, of a file that keep_to_owner() was called for, from any descriptor of
/// it. For its owner alone.
Result<Fd> open_writable(const Fd& file);

}  // namespace fabricshm

// Makes the pool that the configuration asks for.

#pragma once

#include <memory>

#include "fabricd/config/config.hpp"
#include "libfabricshm/machine/host_files.hpp"
#include "libfabricshm/machine/pool_backend.hpp"

namespace fabricd {

/// The pool in `pool`, or one line that names the key to change. `files` is where /sys and /proc
/// are.
/// Looks at the host and makes the pool with all of its promises: memory is reserved, a dax device
/// opened and locked. Once, at the start; what it chose and why goes to the log.
ErrorMessage make_backend(const Config& config, const fabricshm::HostFiles& files,
                          std::unique_ptr<fabricshm::PoolBackend>& pool);

}  // namespace fabricd

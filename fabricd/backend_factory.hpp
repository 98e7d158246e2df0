// Makes the pool that the configuration asks for.

#pragma once

#include <memory>

#include "fabricd/config.hpp"
#include "libfabricshm/machine/host_files.hpp"
#include "libfabricshm/machine/pool_backend.hpp"

namespace fabricd {

/// The pool in `pool`, or one line that names the key to change. `files` is where /sys and /proc
/// are.
Complaint make_backend(const Config& config, const fabricshm::HostFiles& files,
                       std::unique_ptr<fabricshm::PoolBackend>& pool);

}  // namespace fabricd

// Where an agent waits for another task manager: a socket in the job's folder.

#pragma once

#include <string>

#include "fabricd/jobs/child.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// Listens at `path`, in place of what was there. For the user's own processes (mode 0600).
fabricshm::Result<fabricshm::Fd> open_door(const std::string& path);

/// A process of this user or root that came to the door; nothing: none did.
fabricshm::Fd admit(const fabricshm::Fd& door);

struct DoorVisit {
    fabricshm::Fd socket;
    Child agent;  // no child of this process; as the kernel has it
};

/// Never blocks. kNotFound or kSystem when no agent of this user listens.
fabricshm::Result<DoorVisit> visit_door(const std::string& path);

}  // namespace fabricd

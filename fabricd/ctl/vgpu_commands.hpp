// fabricctl vgpus, vgpu-resize and vgpu-share.

#pragma once

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"
#include "fabricd/ctl/json.hpp"

namespace fabricd {

/// Prints the vGPUs.
fabricshm::Result<void> show_vgpus(const CtlOptions& options, AdminClient& client);

/// Changes the quota or the share that options.vgpu has, and prints the vGPU as it is right after
/// the order: a quota below what is in use follows the use down, and shows where it is and where it
/// goes.
fabricshm::Result<void> change_vgpu(const CtlOptions& options, AdminClient& client);

/// The object of `fabricctl vgpus --json`.
Json json_of(const std::vector<VgpuView>& vgpus);

}  // namespace fabricd

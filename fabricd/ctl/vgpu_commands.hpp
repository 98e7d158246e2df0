// fabricctl vgpus, vgpu-resize and vgpu-share.

#pragma once

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Whether `command` is one of them.
bool is_vgpu_command(const std::string& command);

/// Does what the options say and prints the vGPUs, or the one that was changed.
/// A changed vGPU is shown as it is right after the order: a quota below what is in use follows the
/// use down, and shows where it is and where it goes.
fabricshm::Result<void> run_vgpu_command(const CtlOptions& options, AdminClient& client);

}  // namespace fabricd

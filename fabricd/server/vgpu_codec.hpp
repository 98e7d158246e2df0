// vGPUs as messages of admin.proto, in both directions. See admin_codec.hpp.

#pragma once

#include "admin.pb.h"
#include "fabricd/vgpu/vgpu_view.hpp"

namespace fabricd {

/// Of the configuration only what the view shows travels: not the figure per context.
void pack(const VgpuView& view, admin::v1::Vgpu& message);
VgpuView unpack(const admin::v1::Vgpu& message);

}  // namespace fabricd

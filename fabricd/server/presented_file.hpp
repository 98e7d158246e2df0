// What a client presents as an arena's file, looked at before anything is asked of it.

#pragma once

#include <span>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/machine/dax_devices.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// True when `presented` is a memory file, or the very file that `own` is (-1: none): of these
/// fstat() and close() return at once. Of others they may wait for as long as the server of the
/// file likes, so such a descriptor is not touched on the control thread at all.
bool is_harmless(const fabricshm::Fd& presented, int own) noexcept;

/// kCorrupt when what was presented are not the devices, in their order.
fabricshm::Result<void> compare_with(const fabricshm::DaxDevices& devices,
                                     std::span<const fabricshm::Fd> presented);

}  // namespace fabricd

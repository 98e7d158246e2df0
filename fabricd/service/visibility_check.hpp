// Whether a pool that several hosts share may start: only with a profile that was proven for it.

#pragma once

#include "fabricd/config/config.hpp"
#include "libfabricshm/machine/host_files.hpp"

namespace fabricd {

/// Nothing for a pool of one host. Otherwise the proof (pool.visibility_proof) has to be one that
/// two hosts wrote on this machine, for the pool's device and profile, and has to say proven.
/// `files` is where /sys and /proc are, for the fingerprint of this machine. Reads the proof once;
/// what changes on the hardware afterwards is not noticed before the next start.
ErrorMessage check_visibility(const Config& config, const fabricshm::HostFiles& files);

}  // namespace fabricd

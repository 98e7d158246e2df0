// The processors of this machine, from hwloc.

#pragma once

#include "libfabricshm/machine/discovery.hpp"

namespace fabricshm {

/// Zeros when hwloc does not know. Loads the topology: a few milliseconds. HWLOC_SYNTHETIC and
/// HWLOC_XMLFILE in the environment replace this machine by another, as in all hwloc programs.
Processors read_processors();

}  // namespace fabricshm

// The checks of DAX devices and GPUs.

#pragma once

#include "fabricd/ctl/doctor/finding.hpp"
#include "fabricd/ctl/doctor/host_facts.hpp"

namespace fabricd::doctor {

/// Of several devices the gravest finding.
Finding dax_devices(const HostFacts& host);
Finding nvidia_driver(const HostFacts& host);

}  // namespace fabricd::doctor

// The checks of the daemon: its configuration, its unit of systemd, and its sockets.

#pragma once

#include "fabricd/ctl/doctor/finding.hpp"
#include "fabricd/ctl/doctor/host_facts.hpp"

namespace fabricd::doctor {

Finding configuration(const HostFacts& host);
Finding service(const HostFacts& host);
Finding admin_socket(const HostFacts& host);
/// As a trainer of this user would find it.
Finding attach_socket(const HostFacts& host);

}  // namespace fabricd::doctor

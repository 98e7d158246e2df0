// The checks of the kernel, of limits of processes, and of the processors.

#pragma once

#include "fabricd/ctl/doctor/finding.hpp"
#include "fabricd/ctl/doctor/host_facts.hpp"

namespace fabricd::doctor {

Finding kernel_version(const HostFacts& host);
Finding io_uring(const HostFacts& host);
Finding ptrace_scope(const HostFacts& host);
Finding open_files(const HostFacts& host);
Finding locked_memory(const HostFacts& host);
Finding vector_units(const HostFacts& host);
Finding cpu_governor(const HostFacts& host);

}  // namespace fabricd::doctor

// The mock driver in the process of a unit test.

#pragma once

#include <string>

#include "libfabricshm/cuda/driver.hpp"
#include "tests/support/mock_gpu/host.hpp"

namespace mock_gpu {

/// The file of the mock's library, with a GPU for it to find. Once in a process it is loaded, so
/// that its state can be set before the code under test asks it for anything.
const std::string& mock_library();

/// Its state in this process, as it is at the start.
HostState& fresh_host();

/// The driver as the code under test opens it, after fresh_host() and what was set there.
const fabricshm::gpu::Driver& mock_driver();

}  // namespace mock_gpu

// What the mock driver launches, done on the CPU: the bodies of our kernels, as a grid of one
// thread. For HostState::execute, with HostState::real_memory.

#pragma once

#include <cstddef>

namespace mock_gpu {

/// Runs the kernel to its end, also where it waits for ranks that other threads run. Ends the
/// process when there is no such kernel.
void execute_kernel(const char* kernel, unsigned int blocks, const void* argument);

/// For HostState::argument_size, of the same kernels.
std::size_t argument_size(const char* kernel);

}  // namespace mock_gpu

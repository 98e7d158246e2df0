// The mock driver for a torch without CUDA: memory, streams and events of its device.

#pragma once

#include <cstddef>

#include "tests/support/mock_gpu/host.hpp"

namespace mock_torch {

using mock_gpu::Handle;
using mock_gpu::Pointer;
using mock_gpu::Status;

/// What is called of the mock's library, found by name.
struct Driver {
    Status (*stream_create)(Handle*, unsigned int);
    Status (*stream_query)(Handle);
    Status (*stream_wait)(Handle);
    Status (*event_create)(Handle*, unsigned int);
    Status (*event_record)(Handle, Handle);
    Status (*event_query)(Handle);
    Status (*event_block)(Handle stream, Handle event, unsigned int);
    Status (*event_destroy)(Handle);
    Status (*launch_host)(Handle stream, void (*function)(void*), void* argument);

    /// Memory of the device, which this process can read.
    void* allocate(std::size_t bytes) const;
    void free(void* memory) const;
};

/// Loads the mock at its first call, with kernels that run on the CPU and streams that have threads
/// of their own: in the process that uses it, after it was forked.
const Driver& driver();

/// The calling thread's current stream.
Handle current_stream();

}  // namespace mock_torch

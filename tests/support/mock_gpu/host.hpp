// Mock driver: what a test in this process asks of it and sets. Found by dlsym in the mock's
// library, which the test loads as the code under test does: mock_gpu_host().

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libfabricshm/vgpu/cuda_abi.hpp"

namespace mock_gpu {

using fabricshm::cuda::Handle;
using fabricshm::cuda::Pointer;
using fabricshm::cuda::Status;

struct Launch {
    std::string kernel;
    unsigned int blocks = 0;
    unsigned int threads = 0;
    Handle stream = nullptr;
    std::vector<std::byte> argument;  // the kernel's first
};

/// Of this process. A test changes and reads it while nothing runs.
struct HostState {
    // ---- what the test wants ----
    int version = 13000;
    bool has_device = true;
    int fail_registration = -1;  // the n-th from now on, from 0: Status `failure`
    Status failure = 801;        // not supported
    Status module_status = 0;
    Status launch_status = 0;
    Status stream_status = 0;        // of cuStreamQuery
    Pointer device_offset = 0;       // where registered memory appears: its address plus this
    Pointer gap = 0;                 // and the n-th registration n gaps further
    bool real_memory = false;        // cuMemAlloc gives memory that can be read and written here
    bool has_ipc_handles = true;     // of such memory; false: as that of cuMemCreate
    int memory_device = 0;           // the device that such memory is on
    int first_device = 0;            // device n is the machine's n ^ first_device
    bool can_access_peers = true;    // one device the memory of another
    Status open_status = 0;          // of cuIpcOpenMemHandle
    std::size_t argument_bytes = 0;  // that are copied of a kernel's argument
    // Does a launch's work; nullptr: none is done. Called in the launch, with its argument.
    void (*execute)(const char* kernel, unsigned int blocks, const void* argument) = nullptr;
    // Bytes of a kernel's argument, which a captured launch copies as a driver does; nullptr: what
    // is captured has no argument, and does nothing when it is replayed.
    std::size_t (*argument_size)(const char* kernel) = nullptr;
    // Streams have threads of their own, and launches return before the work is done; they copy
    // `argument_size` bytes of it. What the legacy stream does is waited for by none of the others.
    bool own_time = false;

    // ---- what was done ----
    std::map<void*, std::size_t> registered;
    std::vector<unsigned int> flags;        // of each registration
    std::vector<void*> unregistered;        // in this order
    std::vector<Launch> launches;           // and those of replayed graphs, when they are done
    std::map<Pointer, std::size_t> pinned;  // and device memory that can be read
    std::map<Pointer, std::size_t> opened;  // memory of other processes, not closed
    int opens = 0;                          // calls of cuIpcOpenMemHandle that succeeded
    int modules = 0;                        // loaded and not unloaded
    int contexts = 0;                       // pushed and not popped
};

}  // namespace mock_gpu

extern "C" mock_gpu::HostState* mock_gpu_host();

// The mock driver for a torch without CUDA: memory, streams and events of its device.

#pragma once

#include <cstddef>
#include <string>

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
    Status (*capture_begin)(Handle stream, int mode);
    Status (*capture_end)(Handle stream, Handle* graph);
    Status (*instantiate)(Handle* executable, Handle graph, unsigned long long flags);
    Status (*graph_launch)(Handle executable, Handle stream);
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

/// The capture of a graph from the current stream, as torch.cuda.graph() begins it: streams join it
/// by events, and what would break it on a GPU is noted (capture.cpp). One at a time.
void begin_capture();
/// Ends it. The graph is kept for launch_graph(). Returns what has broken it, "" for nothing.
std::string end_capture();
/// Launches it on the current stream.
void launch_graph();
bool is_captured(Handle stream);

/// What guard.cpp asks and says. `note_unsafe()`: a call that a capture forbids. record_captured()
/// and block_captured(): whether that was a matter of the capture, and done.
void note_unsafe(const char* call);
bool record_captured(Handle event, Handle stream);
bool block_captured(Handle event, Handle stream);

}  // namespace mock_torch

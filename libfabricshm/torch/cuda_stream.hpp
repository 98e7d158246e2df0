// Streams of a CUDA device as torch has them, by way of the guard that a torch with CUDA registers:
// nothing here is linked with CUDA or with torch's part for it. docs/adr/0038.

#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fabricshm::torch_backend {

/// A stream of torch's pool, next to those that programs compute on. Thread-safe once it is made.
class CudaStream {
  public:
    /// With the priority that torch has for communication. Takes the interpreter's lock for a
    /// moment; not while the current stream is captured. Raises where torch has no such device.
    explicit CudaStream(c10::Device device);

    c10::Device device() const { return stream_.device(); }
    /// For torch.
    c10::Stream stream() const { return stream_; }
    /// For the driver: a cudaStream_t.
    void* handle() const { return handle_; }
    /// What the calling thread's work on this device is put on.
    c10::Stream current() const { return guard_.getStream(device()); }

  private:
    c10::impl::VirtualGuardImpl guard_;
    c10::Stream stream_;
    void* handle_;
};

/// Whether the calling thread's current stream is being captured into a graph: then no event may be
/// asked whether it has passed. Takes the interpreter's lock.
bool is_capturing();

/// Waits until the device has done what the calling thread has put on its current stream.
void wait_for_current_stream(c10::Device device);

}  // namespace fabricshm::torch_backend

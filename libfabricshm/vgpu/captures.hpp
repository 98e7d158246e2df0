// Whether this process captures a stream into a graph at the moment. Then nothing that the program
// did not ask for may hold it up, nor call what a capture does not allow.

#pragma once

#include "libfabricshm/vgpu/cuda_abi.hpp"

namespace fabricshm::cuda {

/// Whether any thread has a capture under way. One load.
bool any_capture() noexcept;

/// While it lives, what this thread calls of the driver does not break a capture, its own or
/// another thread's: such calls as trimming a pool, which no program expects of an allocation.
/// Nothing where there is no capture.
class BesideCaptures {
  public:
    BesideCaptures() noexcept;
    ~BesideCaptures();
    BesideCaptures(const BesideCaptures&) = delete;
    BesideCaptures& operator=(const BesideCaptures&) = delete;

  private:
    bool is_relaxed_ = false;
    int mode_ = 0;  // of the thread, before
};

}  // namespace fabricshm::cuda

// A group's operations on a CUDA device for Python: addresses and streams as integers, as PyTorch
// gives them. _shared_cuda.py makes them of tensors.

#pragma once

#include <fabricshm/cuda.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include "libfabricshm/python/group.hpp"
#include "libfabricshm/python/handles.hpp"

namespace fabricshm::python {

/// This rank's place on its device, taken and left by all ranks. Keeps the group.
class CudaGroup {
  public:
    /// Attaches the group's arena to the device, if it is not yet, and joins there.
    CudaGroup(const Group& group, int device, std::uint64_t stage_bytes, std::int64_t timeout_ms);

    /// FABRICSHM_CUDA_FACTORS_BYTES bytes.
    static pybind11::bytes factors(int optimiser, const fabricshm_hyper& hyper, std::uint64_t step);

    // The names are those of fabricshm_cuda_step; 0 where there is none.
    struct Step {
        int optimiser = 0;
        int gradient_dtype = 0;
        int publish_dtype = 0;
        float scale = 1;
        std::uint64_t total = 0;
        std::uint64_t begin = 0;
        std::uint64_t count = 0;
        std::uintptr_t factors = 0;
        std::uintptr_t parameters = 0;
        std::uintptr_t first = 0;
        std::uintptr_t second = 0;
        std::uintptr_t maximum = 0;
        std::uintptr_t gradient = 0;
        std::uintptr_t publish = 0;
    };
    void step(const Step& step, std::uintptr_t stream) const;
    void all_gather(std::uintptr_t input, std::uintptr_t output, std::uint64_t count, int dtype,
                    std::uintptr_t stream) const;
    void broadcast(std::uintptr_t buffer, std::uint64_t count, int dtype, int root,
                   std::uintptr_t stream) const;
    /// Raises when a rank has died or failed, without waiting; the waits of others end then. From
    /// any thread.
    void status() const;
    /// Until the stream has nothing to do, without the interpreter's lock.
    void wait(std::uintptr_t stream, std::int64_t timeout_ms) const;
    void leave();

  private:
    const std::shared_ptr<GroupHandle>& open() const;

    std::shared_ptr<GroupHandle> group_;  // null: it was left
};

}  // namespace fabricshm::python

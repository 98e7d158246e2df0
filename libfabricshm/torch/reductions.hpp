// One reduction of one tensor, as it runs on the executor.

#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <vector>

#include "libfabricshm/torch/call.hpp"
#include "libfabricshm/torch/dtypes.hpp"

namespace fabricshm::torch_backend {

/// A tensor in the form its reduction runs on: contiguous and of the carrier type.
class ReductionBuffer {
  public:
    ReductionBuffer(const at::Tensor& tensor, at::ScalarType carrier);
    /// Multiplies what is going to be reduced.
    void weigh(double factor) const;
    /// Writes the result back, when the tensor itself was not the buffer.
    void store() const;
    const at::Tensor& buffer() const { return buffer_; }

  private:
    at::Tensor tensor_;
    at::Tensor buffer_;
};

/// All parts in the carrier type, one behind the other; one part alone may be that tensor itself.
at::Tensor joined(const std::vector<at::Tensor>& parts, at::ScalarType carrier);

/// allreduce of `tensor` in place.
void all_reduce(const Communicator& communicator, const at::Tensor& tensor,
                const Reduction& reduction, std::chrono::milliseconds timeout);

/// allreduce of a sparse tensor: the sum of all ranks' entries, coalesced, in place. Three gathers:
/// how many entries each rank has, their indices, their values. Moves what all ranks have to each,
/// which pays while entries are few.
void all_reduce_sparse(const Communicator& communicator, const at::Tensor& tensor,
                       std::chrono::milliseconds timeout);

}  // namespace fabricshm::torch_backend

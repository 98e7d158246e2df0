// The operations of a process group on CUDA tensors, each put on the group's stream. Arguments have
// been checked as those of the CPU's are: dense, on the lane's device, of matching types and sizes.

#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "libfabricshm/torch/cuda_lane.hpp"
#include "libfabricshm/torch/dtypes.hpp"

namespace fabricshm::torch_backend {

/// Where an operation goes, and what it is called.
struct CudaTarget {
    std::shared_ptr<CudaLane> lane;
    c10d::OpType type;
    const char* title;  // what the profiler shows
};

using CudaWorkRef = c10::intrusive_ptr<c10d::Work>;
using CudaTensors = std::vector<at::Tensor>;

CudaWorkRef cuda_broadcast(const CudaTarget& to, const at::Tensor& tensor, int root);

/// In place, one after the other.
CudaWorkRef cuda_all_reduce(const CudaTarget& to, const CudaTensors& tensors,
                            const Reduction& reduction);

/// As an all_reduce of copies, since the others' tensors are not touched.
CudaWorkRef cuda_reduce(const CudaTarget& to, const at::Tensor& tensor, const Reduction& reduction,
                        int root);

/// inputs[i] of rank r goes to outputs[i][r]; or, where there is one output, to its r-th part.
CudaWorkRef cuda_all_gather(const CudaTarget& to, const CudaTensors& inputs,
                            const std::vector<CudaTensors>& outputs);

/// As an all_gather, of which only the root keeps something; `outputs` of others is empty.
CudaWorkRef cuda_gather(const CudaTarget& to, const at::Tensor& input, const CudaTensors& outputs);

/// As a broadcast of all parts; `inputs` of others than the root is empty.
CudaWorkRef cuda_scatter(const CudaTarget& to, const at::Tensor& output, const CudaTensors& inputs,
                         int root);

/// `parts` is one for each rank, or one tensor that holds all.
CudaWorkRef cuda_reduce_scatter(const CudaTarget& to, const at::Tensor& output,
                                const CudaTensors& parts, const Reduction& reduction);

/// Does nothing, and is over when what was launched before it is.
CudaWorkRef cuda_mark(const CudaTarget& to);

/// Its wait() waits for the ranks, and for what the caller had put on its stream.
CudaWorkRef cuda_barrier(const CudaTarget& to);

}  // namespace fabricshm::torch_backend

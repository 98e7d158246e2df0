// How torch's element types and reduce operations become the library's.

#pragma once

#include <ATen/ATen.h>
#include <fabricshm/fabricshm.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace fabricshm::torch_backend {

/// What a reduction of one tensor runs as. `carrier` differs from the tensor's own type where the
/// library has none for it: the tensor is converted before and back afterwards.
struct Reduction {
    fabricshm_dtype dtype;
    fabricshm_op op;
    at::ScalarType carrier;
    double factor = 1.0;  // of this rank's tensor, before it is reduced
};

/// Chooses it, or raises: bit operations take integers and bool, AVG takes floating point, complex
/// has to be viewed as real first (torch.distributed does that for SUM). bool keeps its truth
/// values: a sum is "any", a product is "all".
Reduction reduction_of(at::ScalarType type, const c10d::ReduceOp& op);

/// As reduction_of() for an all-reduce, which also takes PREMUL_SUM of floating point: a sum of
/// tensors of which each rank's was multiplied by a factor of its own.
Reduction all_reduction_of(at::ScalarType type, const c10d::ReduceOp& op);

}  // namespace fabricshm::torch_backend

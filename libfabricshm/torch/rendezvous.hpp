// How the ranks of a process group agree, through torch's store, on an arena and a group name.

#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "libfabricshm/torch/call.hpp"

namespace fabricshm::torch_backend {

/// Every rank calls it once per process group with the group's own store. Rank 0 names an arena
/// (that of the process's live group, $FABRIC_ARENA, or a new one), opens it and publishes the
/// name; the others open it, and all join a group in it. When a rank fails, all raise its reason:
/// at once. Blocks until all are there, at most `timeout`; then the error names the ranks that have
/// not come.
std::shared_ptr<Communicator> meet(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   std::chrono::milliseconds timeout);

}  // namespace fabricshm::torch_backend

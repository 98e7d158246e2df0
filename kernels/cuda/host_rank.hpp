// A CPU's part in a device group: the same words and steps as a CUDA kernel's, in the calling
// thread. With it ranks of CPUs and GPUs are in one group. adr/0037.

#pragma once

#include "kernels/cuda/launch.hpp"

namespace kernels::cuda {

/// What a wait calls now and then, every few turns of its loop: a chance to look after the peers,
/// whose words can't say that their processes have died. It may store the abort word.
struct HostWait {
    void (*look)(void* context) noexcept = nullptr;
    void* context = nullptr;
    // Asked before the peers may rely on what this rank has read and written: true ends the
    // operation for all, with kAborted by this rank.
    bool (*is_harmed)(void* context) noexcept = nullptr;
};

/// What fabric_collective does, by this thread and the CPU's kernels: waits for the peers, at most
/// group.timeout_ns for their arrival and again for their end. Addresses are pointers of this
/// process; group.grid (a GridWords, zeroed once) and group.status are its own. How it ended is
/// there: see StatusWords. One thread at a time for one group.
void run_collective_on_host(const CollectiveArgs& args, HostWait wait = {}) noexcept;

/// Likewise what fabric_step does.
void run_step_on_host(const StepArgs& args, HostWait wait = {}) noexcept;

}  // namespace kernels::cuda

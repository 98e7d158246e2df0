#include "libfabricshm/cuda/group_gate.hpp"

#include <atomic>

namespace fabricshm::gpu {

kernels::cuda::Gate GroupGate::args() const noexcept {
    const Executor::Words& words = executor_.words();
    return {words.grid, words.status_address, is_captured_ ? std::uint64_t{0} : 1};
}

// Acquire, here and below: what the kernels did comes before the memory is given back.
bool GroupGate::have_ended() const noexcept {
    const std::atomic_ref<std::uint64_t> ended(executor_.words().status->ended);
    return ended.load(std::memory_order_acquire) >= launched_ || !executor_.has_context();
}

bool GroupGate::is_busy() const noexcept {
    const std::atomic_ref<std::uint64_t> busy(executor_.words().status->busy);
    return busy.load(std::memory_order_acquire) != 0 && executor_.has_context();
}

// The fence is the host's half of the argument in gate_body.hpp.
void GroupGate::close() noexcept {
    const std::atomic_ref<std::uint64_t> closed(executor_.words().status->closed);
    closed.store(1, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace fabricshm::gpu

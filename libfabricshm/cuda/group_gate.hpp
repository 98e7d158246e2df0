// GroupGate: what one rank has on streams, and the end of that. The host's part of
// kernels/cuda/gate_body.hpp.

#pragma once

#include <cstdint>

#include "kernels/cuda/launch.hpp"
#include "libfabricshm/cuda/executor.hpp"

namespace fabricshm::gpu {

/// It asks no stream, which the caller may have destroyed, and calls nothing that a capture does
/// not allow. begin() and count_launch() by the thread that launches.
class GroupGate {
  public:
    /// Of the executor's words, which outlive this.
    explicit GroupGate(const Executor& executor) noexcept : executor_(executor) {}

    /// Whether the stream of the launches that follow is captured.
    void begin(bool is_captured) noexcept { is_captured_ = is_captured; }
    void count_launch() noexcept { launched_ += is_captured_ ? 0 : 1; }
    /// For the next kernel's arguments.
    kernels::cuda::Gate args() const noexcept;

    /// Whether all that was launched has ended; what was captured is not known here.
    bool have_ended() const noexcept;
    /// Whether a kernel may touch memory of the group, a graph's as well.
    bool is_busy() const noexcept;
    /// Kernels that begin from here on do nothing; those that have begun is_busy() knows.
    void close() noexcept;

  private:
    const Executor& executor_;
    bool is_captured_ = false;
    std::uint64_t launched_ = 0;
};

}  // namespace fabricshm::gpu

// Ending: how a process group is aborted and shut down, and what is refused afterwards.

#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "libfabricshm/torch/call.hpp"
#include "libfabricshm/torch/cuda_lane.hpp"
#include "libfabricshm/torch/executor.hpp"

namespace fabricshm::torch_backend {

/// Of one process group. Thread-safe.
class Ending {
  public:
    using LaneOf = std::function<std::shared_ptr<CudaLane>()>;

    /// Borrows both from the process group, which has them for as long as this lives.
    Ending(const std::shared_ptr<Communicator>& communicator,
           const std::shared_ptr<Executor>& executor)
        : communicator_(communicator), executor_(executor) {}

    /// Raises after abort() and shutdown(), but for callbacks that shutdown() waits for. `title` is
    /// that of an operation, as the profiler shows it: "fabricshm:all_reduce".
    void check(const char* title) const;

    /// See ProcessGroupFabricshm. `lane`: the group's on its device, or null.
    void abort(const LaneOf& lane);
    /// `take_lane` gives it away.
    void shutdown(std::chrono::milliseconds limit, const LaneOf& take_lane);

  private:
    void end(const char* why);

    const std::shared_ptr<Communicator>& communicator_;
    const std::shared_ptr<Executor>& executor_;
    std::atomic<bool> aborted_{false};
    std::atomic<bool> shut_down_{false};
};

}  // namespace fabricshm::torch_backend

// CudaLane: what a process group does on one CUDA device, in the order of a stream of its own.

#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "libfabricshm/torch/call.hpp"
#include "libfabricshm/torch/cuda_stream.hpp"

namespace fabricshm::torch_backend {

/// One operation that was put on the stream. Its tensors are held until the stream has passed it,
/// or until a stream that the program goes on with waits for it.
class InFlight {
  public:
    InFlight(std::vector<at::Tensor> tensors, bool captured)
        : captured_(captured), event_(c10::DeviceType::CUDA), tensors_(std::move(tensors)) {}

    /// It is a part of a graph and happens whenever that is launched: its event says nothing, and
    /// must not be asked for.
    bool is_captured() const { return captured_; }

    /// Once, before any other.
    void record(c10::Stream stream) { event_.record(stream); }
    bool has_passed() const { return event_.query(); }
    void block(c10::Stream stream) const { event_.block(stream); }
    /// Thread-safe, as the two above.
    void release_tensors();

  private:
    const bool captured_;
    c10::Event event_;
    std::mutex mutex_;
    std::vector<at::Tensor> tensors_;
};

/// Made by all ranks of the group at the same place in their order of operations. Operations are
/// put on the stream by run(), which does not wait; all ranks in the same order. Failures are those
/// of fabricshm_cuda_status(): they are raised by what is called next.
///
/// A thread looks every kWatchEvery after the peers' processes, so that a death ends the kernels
/// that wait for the dead one, whatever this process waits by. It calls nothing of CUDA: a graph
/// may be captured meanwhile.
class CudaLane {
  public:
    static constexpr std::chrono::milliseconds kWatchEvery{100};

    /// Joins: what has to be in the order of the group's operations is run by the caller before,
    /// see Communicator::join_cuda().
    CudaLane(std::shared_ptr<Communicator> communicator, const CudaStream& stream,
             std::chrono::milliseconds timeout);
    /// Waits for what was put on the stream, at most for the timeout.
    ~CudaLane();
    CudaLane(const CudaLane&) = delete;
    CudaLane& operator=(const CudaLane&) = delete;

    /// Calls `body` with the group's stream as torch's current one, after the stream was made to
    /// wait for the caller's. What the body allocates belongs to that stream and may be dropped at
    /// once; `tensors` are those of the caller. Raises when it could not be put on the stream.
    std::shared_ptr<InFlight> run(std::vector<at::Tensor> tensors,
                                  const std::function<void()>& body);

    /// Raises why the group can't go on, if it can't; `what` is the operation of the caller.
    void check(const char* what) const;

    const Communicator& communicator() const { return *communicator_; }
    fabricshm_group* group() const { return communicator_->handle(); }
    const CudaStream& stream() const { return stream_; }
    c10::Device device() const { return stream_.device(); }

  private:
    void watch();
    void drop_what_has_passed();

    const std::shared_ptr<Communicator> communicator_;
    const CudaStream stream_;
    const std::chrono::milliseconds timeout_;
    std::mutex mutex_;                            // of run(): one thread at a time for each group
    c10::Event arrival_{c10::DeviceType::CUDA};   // of the caller's stream, recorded once for each
    std::deque<std::shared_ptr<InFlight>> held_;  // in the order of the stream

    std::mutex watch_mutex_;
    std::condition_variable stopped_;
    bool stopping_ = false;
    std::thread watcher_;
};

}  // namespace fabricshm::torch_backend

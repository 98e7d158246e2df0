// ProcessGroupFabricshm: how operations of CUDA tensors come to their device.

#include <utility>

#include "libfabricshm/torch/arena_allocator.hpp"
#include "libfabricshm/torch/cuda_work.hpp"
#include "libfabricshm/torch/process_group.hpp"

namespace fabricshm::torch_backend {

// In the order of the group's collectives, since ranks join by collectives: a rank that has called
// one of the CPU's instead is named.
void ProcessGroupFabricshm::join_cuda(c10::Device device) {
    TORCH_CHECK(!is_capturing(),
                "fabricshm: the first operation of a process group on CUDA tensors waits for all "
                "ranks, which a graph can't capture: call one, a barrier say, before the capture");
    const CudaStream stream(device);
    auto joining = c10::make_intrusive<CollectiveWork>(
        executor_, getRank(), c10d::OpType::BARRIER, "fabricshm:join_cuda", TensorList{},
        TensorList{}, [communicator = communicator_, device, timeout = timeout_] {
            communicator->join_cuda(device.index(), timeout);
        });
    executor_->submit(joining, std::chrono::nanoseconds(0));
    joining->wait(kNoTimeout);
    cuda_ = std::make_shared<CudaLane>(communicator_, stream, timeout_);
}

CudaTarget ProcessGroupFabricshm::on_device(const at::Tensor& tensor, c10d::OpType type,
                                            const char* title) {
    const std::lock_guard lock(cuda_mutex_);
    if (!cuda_) join_cuda(tensor.device());
    TORCH_CHECK(tensor.device() == cuda_->device(), "fabricshm: this process group is on ",
                cuda_->device(), ", where its first CUDA tensor was; this tensor is on ",
                tensor.device());
    // Counted when it is called, as in submit().
    sequence_.fetch_add(1, std::memory_order_relaxed);
    return {cuda_, type, title};
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::all_to_all_on_host(
    const TensorList& outputs, const TensorList& inputs,
    const std::function<WorkRef(TensorList&, TensorList&)>& operation) {
    const at::NoGradGuard no_grad;
    // In the arena, where the peers read them.
    const ArenaScope in_arena;
    TensorList from;
    TensorList to;
    for (const at::Tensor& input : inputs) {
        from.push_back(at::empty(input.sizes(), input.options().device(at::kCPU)));
        from.back().copy_(input);  // waits for the caller's stream
    }
    for (const at::Tensor& output : outputs) {
        to.push_back(at::empty(output.sizes(), output.options().device(at::kCPU)));
    }
    operation(to, from)->wait(kNoTimeout);
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(to[i]);
    return c10::make_intrusive<CopiedWork>(getRank(), c10d::OpType::ALLTOALL, outputs);
}

}  // namespace fabricshm::torch_backend

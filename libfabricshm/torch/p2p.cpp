#include "libfabricshm/torch/p2p.hpp"

#include <memory>
#include <utility>

#include "libfabricshm/torch/arena_allocator.hpp"
#include "libfabricshm/torch/cuda_stream.hpp"

namespace fabricshm::torch_backend {
namespace {

// Contiguous for the library; for a receive the content does not matter, the place does. Messages
// of a device go by way of the CPU.
at::Tensor buffer_of(const at::Tensor& tensor, bool receives) {
    if (!tensor.is_cuda()) return tensor.contiguous();
    const ArenaScope in_arena;
    at::Tensor buffer = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    // What is received is copied by another thread, on another stream: after all that the caller
    // has still to do with the tensor.
    if (receives) wait_for_current_stream(tensor.device());
    if (!receives) buffer.copy_(tensor);
    return buffer;
}

}  // namespace

// Lives until the library reports the end, even when the caller has dropped the work: the buffer
// is read or written until then.
struct PointToPointWork::Transfer {
    c10::intrusive_ptr<PointToPointWork> work;
    at::Tensor tensor;
    at::Tensor buffer;  // contiguous: `tensor` itself or a copy of it
    fabricshm_request* request = nullptr;
    std::shared_ptr<void> in_flight;
    std::shared_ptr<const Outstanding> outstanding;
    bool receives = false;

    // Under no lock of torch: it may take long to copy into a strided tensor.
    std::exception_ptr finish(int& peer) {
        try {
            peer = receives ? fabricshm_request_peer(request) : -1;
            const char* const what = receives ? "receive" : "send";
            const int code = fabricshm_wait(request);
            if (code != FABRICSHM_OK) outstanding->check(what);
            check(code, what);
            at::NoGradGuard no_grad;
            if (receives && !buffer.is_same(tensor)) tensor.copy_(buffer);
        } catch (...) {
            return std::current_exception();
        }
        return nullptr;
    }

    // On the library's progress thread.
    static void on_complete(void* context, int) {
        std::unique_ptr<Transfer> self(static_cast<Transfer*>(context));
        int peer = -1;
        std::exception_ptr error = self->finish(peer);
        self->in_flight.reset();  // before a waiter may go on to destroy the group
        const auto work = std::move(self->work);
        work->end(error, peer);
    }
};

PointToPointWork::PointToPointWork(std::shared_ptr<Executor> executor, int rank, c10d::OpType type,
                                   const char* title, const at::Tensor& tensor)
    : FabricWork(rank, type, title, {tensor}, {tensor}), executor_(std::move(executor)) {}

c10::intrusive_ptr<PointToPointWork> PointToPointWork::start(const Communicator& communicator,
                                                             std::shared_ptr<Executor> executor,
                                                             fabricshm_call call, c10d::OpType type,
                                                             const char* title,
                                                             const at::Tensor& tensor) {
    auto work = c10::make_intrusive<PointToPointWork>(std::move(executor), communicator.rank(),
                                                      type, title, tensor);
    auto transfer = std::make_unique<Transfer>();
    transfer->work = work;
    transfer->tensor = tensor;
    transfer->receives = call.kind == FABRICSHM_RECV;
    transfer->outstanding = communicator.outstanding();
    transfer->buffer = buffer_of(tensor, transfer->receives);
    call.dtype = FABRICSHM_U8;
    call.count = transfer->buffer.nbytes();
    call.input = transfer->receives ? nullptr : transfer->buffer.data_ptr();
    call.output = transfer->receives ? transfer->buffer.data_ptr() : nullptr;
    transfer->request =
        communicator.start(call, transfer->receives ? "receive" : "send", transfer->in_flight);
    fabricshm_request* request = transfer->request;
    // From here the callback owns it; it may have run before this returns.
    check(fabricshm_on_complete(request, &Transfer::on_complete, transfer.release()),
          "watch a transfer");
    return work;
}

void PointToPointWork::end(std::exception_ptr error, int peer) {
    {
        std::lock_guard lock(mutex_of_end_);
        peer_ = peer;
    }
    // In this order: a waiter that is woken finds it done.
    const bool has_future = conclude(error);
    wake();  // callbacks may take long
    if (!has_future) return;
    const auto call_back = [self = c10::intrusive_ptr<PointToPointWork>::reclaim_copy(this)] {
        self->fulfil();
        self->wake();
    };
    executor_->call_back(call_back, scope_);
}

void PointToPointWork::expect_callbacks() {
    std::lock_guard lock(mutex_of_end_);
    scope_ = scope_of_thread();
}

void PointToPointWork::wake() {
    // Taken, so that a waiter has either seen the end or hears this.
    std::lock_guard lock(mutex_of_end_);
    ended_.notify_all();
}

bool PointToPointWork::wait(std::chrono::milliseconds timeout) {
    {
        std::unique_lock lock(mutex_of_end_);
        const auto finished = [this] { return over(); };
        if (timeout == kNoTimeout) {
            ended_.wait(lock, finished);
        } else {
            TORCH_CHECK(ended_.wait_for(lock, timeout, finished), "Operation timed out!");
        }
    }
    rethrow();
    return true;
}

int PointToPointWork::sourceRank() const {
    std::lock_guard lock(mutex_of_end_);
    return peer_;
}

}  // namespace fabricshm::torch_backend

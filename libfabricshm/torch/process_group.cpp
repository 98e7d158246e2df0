#include "libfabricshm/torch/process_group.hpp"

#include <algorithm>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <utility>

#include "libfabricshm/torch/arena_allocator.hpp"
#include "libfabricshm/torch/arguments.hpp"
#include "libfabricshm/torch/buffers.hpp"
#include "libfabricshm/torch/cuda_work.hpp"
#include "libfabricshm/torch/interpreter_lock.hpp"
#include "libfabricshm/torch/p2p.hpp"
#include "libfabricshm/torch/reductions.hpp"
#include "libfabricshm/torch/rendezvous.hpp"

namespace fabricshm::torch_backend {
namespace {

// Also what the arena allocator leaves in the ordinary heap: up to here a copy is cheap.
constexpr std::size_t kSmallBytes = 64 * 1024;

// How long the worker leaves an operation to its waiter. A small one runs faster than the hop to
// the worker; a large one should not wait long when its caller computes meanwhile.
std::chrono::nanoseconds delay_for(std::size_t bytes) {
    return bytes <= kSmallBytes ? std::chrono::microseconds(1000) : std::chrono::microseconds(50);
}

// Callbacks get the time that operations get. Unset is c10d's default; a year is as good as
// endless.
Milliseconds hold_limit(Milliseconds timeout) {
    if (timeout.count() <= 0) return std::chrono::minutes(30);
    return std::min<Milliseconds>(timeout, std::chrono::hours(24 * 365));
}

}  // namespace

ProcessGroupFabricshm::ProcessGroupFabricshm(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             int size, Milliseconds timeout)
    : GroupBase(rank, size),
      store_(store),
      timeout_(timeout),
      communicator_(meet(store, rank, size, timeout)),
      executor_(std::make_shared<Executor>(hold_limit(timeout))),
      ending_(communicator_, executor_) {
    init();
}

// Without the interpreter's lock: bodies may take it, and this waits for them.
ProcessGroupFabricshm::~ProcessGroupFabricshm() {
    const WithoutInterpreterLock released;
    // What was submitted is finished first, for peers count on it; then the group can be left.
    executor_->shut_down();
    cuda_.reset();
    communicator_.reset();
}

void ProcessGroupFabricshm::abort() {
    ending_.abort([this] {
        const std::lock_guard lock(cuda_mutex_);
        return cuda_;
    });
}

void ProcessGroupFabricshm::shutdown() {
    ending_.shutdown(hold_limit(timeout_of(c10d::kUnsetTimeout)), [this] {
        const std::lock_guard lock(cuda_mutex_);
        return std::exchange(cuda_, nullptr);
    });
}

Milliseconds ProcessGroupFabricshm::timeout_of(Milliseconds option) const {
    return option == c10d::kUnsetTimeout ? timeout_.load(std::memory_order_relaxed) : option;
}

std::uint64_t ProcessGroupFabricshm::getSequenceNumberForGroup() {
    return sequence_.load(std::memory_order_relaxed);  // a number to compare, orders nothing
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::submit(Submission submission, Body body) {
    // Counted when it is called, not when it runs: torch compares the numbers to find out which
    // rank left out a call.
    ending_.check(submission.title);
    sequence_.fetch_add(1, std::memory_order_relaxed);
    auto work = c10::make_intrusive<CollectiveWork>(executor_, getRank(), submission.type,
                                                    submission.title, submission.inputs,
                                                    std::move(submission.outputs), std::move(body));
    executor_->submit(work, delay_for(submission.bytes));
    return noted(work);
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::noted(WorkRef work) {
    const std::lock_guard lock(coalescing_mutex_);
    if (is_coalescing_) coalesced_.push_back(work);
    return work;
}

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
void ProcessGroupFabricshm::startCoalescing() {
    const std::lock_guard lock(coalescing_mutex_);
    TORCH_CHECK(!is_coalescing_,
                "fabricshm: operations of this process group are coalesced already");
    is_coalescing_ = true;
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::endCoalescing() {
    std::shared_ptr<CudaLane> lane;
    {
        const std::lock_guard lock(cuda_mutex_);
        lane = cuda_;
    }
    std::vector<WorkRef> works;
    {
        const std::lock_guard lock(coalescing_mutex_);
        TORCH_CHECK(is_coalescing_, "fabricshm: no operations of this process group are coalesced");
        is_coalescing_ = false;
        works.swap(coalesced_);
    }
    // Behind all that was put on the device's stream.
    if (lane) works.push_back(cuda_mark({lane, c10d::OpType::UNKNOWN, "fabricshm:coalesced"}));
    return c10::make_intrusive<CoalescedWork>(getRank(), std::move(works));
}
#endif

// In the order of the group's collectives, since ranks join by collectives: a rank that has called
// one of the CPU's instead is named.
void ProcessGroupFabricshm::join_cuda(c10::Device device) {
    TORCH_CHECK(!is_capturing(),
                "fabricshm: the first operation of a process group on CUDA tensors waits for all "
                "ranks, which a graph can't capture: call one, a barrier say, before the capture");
    const CudaStream stream(device);
    auto joining = c10::make_intrusive<CollectiveWork>(
        executor_, getRank(), c10d::OpType::BARRIER, "fabricshm:join_cuda", TensorList{},
        TensorList{},
        [communicator = communicator_, device, timeout = timeout_of(c10d::kUnsetTimeout)] {
            communicator->join_cuda(device.index(), timeout);
        });
    executor_->submit(joining, std::chrono::nanoseconds(0));
    joining->wait(kNoTimeout);
    cuda_ = std::make_shared<CudaLane>(communicator_, stream, timeout_of(c10d::kUnsetTimeout));
}

CudaTarget ProcessGroupFabricshm::on_device(const at::Tensor& tensor, c10d::OpType type,
                                            const char* title) {
    ending_.check(title);
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

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::broadcast(
    TensorList& tensors, const c10d::BroadcastOptions& options) {
    const Refuse refuse("broadcast");
    c10d::assertRootRank(refuse, static_cast<int>(options.rootRank), getSize());
    c10d::assertRootTensor(refuse, static_cast<int>(options.rootTensor),
                           static_cast<int>(tensors.size()));
    c10d::assertSingleElement(refuse, tensors);
    if (are_on_cuda("broadcast", tensors)) {
        return cuda_broadcast(on_device(tensors[0], c10d::OpType::BROADCAST, "fabricshm:broadcast"),
                              tensors[0], static_cast<int>(options.rootRank));
    }
    return submit(
        // In place: the root's tensor is read, the others' are written.
        {c10d::OpType::BROADCAST, "fabricshm:broadcast", tensors[0].nbytes(), tensors, tensors},
        [communicator = communicator_, tensor = tensors[0],
         root = static_cast<int>(options.rootRank), timeout = timeout_of(options.timeout)] {
            const FlatBuffer buffer({tensor});
            buffer.load();
            fabricshm_call call =
                make_call(FABRICSHM_BROADCAST, FABRICSHM_U8, buffer.bytes(), timeout);
            call.root = root;
            call.input = call.output = buffer.data();
            communicator->run(call, "broadcast");
            if (communicator->rank() != root) buffer.store();
        });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::reduce_dense(TensorList tensors,
                                                                   const c10d::ReduceOp& op,
                                                                   Milliseconds timeout,
                                                                   c10d::OpType type) {
    std::size_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
    // One after the other and not joined: tensors in the arena are reduced where they are.
    const Reduction reduction = all_reduction_of(tensors[0].scalar_type(), op);
    if (tensors[0].is_cuda()) {
        return cuda_all_reduce(on_device(tensors[0], type, "fabricshm:all_reduce"), tensors,
                               reduction);
    }
    return submit({type, "fabricshm:all_reduce", bytes, tensors, tensors},
                  [communicator = communicator_, tensors, reduction, timeout] {
                      for (const at::Tensor& tensor : tensors) {
                          all_reduce(*communicator, tensor, reduction, timeout);
                      }
                  });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::allreduce(
    TensorList& tensors, const c10d::AllreduceOptions& options) {
    const Refuse refuse("allreduce");
    c10d::assertNonEmpty(refuse, tensors);
    c10d::assertSingleElement(refuse, tensors);
    const Milliseconds timeout = timeout_of(options.timeout);
    if (tensors[0].layout() != at::kSparse) {
        are_on_cuda("allreduce", tensors);
        return reduce_dense(tensors, options.reduceOp, timeout, c10d::OpType::ALLREDUCE);
    }
    TORCH_CHECK(tensors[0].device().is_cpu(),
                "fabricshm: allreduce of sparse tensors takes those of the CPU; use .to_dense() or "
                ".cpu()");
    c10d::ReduceOp op = options.reduceOp;
    TORCH_CHECK(op == c10d::ReduceOp::SUM,
                // Word for word what gloo says here: torch's own test suite expects it.
                "unsupported reduction operation (allreduce of sparse "
                "tensors only works with ReduceOp.SUM)");
    return submit(
        // Sparse tensors have no size to speak of before they are gathered.
        {c10d::OpType::ALLREDUCE, "fabricshm:sparse_all_reduce", kSmallBytes + 1, tensors, tensors},
        [communicator = communicator_, tensor = tensors[0], timeout] {
            all_reduce_sparse(*communicator, tensor, timeout);
        });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::allreduce_coalesced(
    TensorList& tensors, const c10d::AllreduceCoalescedOptions& options) {
    const Refuse refuse("allreduce_coalesced");
    c10d::assertNonEmpty(refuse, tensors);
    c10d::assertLayoutMatch(refuse, tensors);
    // All reduce alike, so their types have to be the same.
    for (std::size_t i = 1; i < tensors.size(); ++i) {
        c10d::assertTypeMatch(refuse, tensors[0].options(), tensors, i);
    }
    are_on_cuda("allreduce_coalesced", tensors);
    return reduce_dense(tensors, options.reduceOp, timeout_of(options.timeout),
                        c10d::OpType::ALLREDUCE_COALESCED);
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::reduce(TensorList& tensors,
                                                             const c10d::ReduceOptions& options) {
    const Refuse refuse("reduce");
    c10d::assertRootRank(refuse, static_cast<int>(options.rootRank), getSize());
    c10d::assertSingleElement(refuse, tensors);
    const bool on_cuda = are_on_cuda("reduce", tensors);
    const Reduction reduction = reduction_of(tensors[0].scalar_type(), options.reduceOp);
    if (on_cuda) {
        return cuda_reduce(on_device(tensors[0], c10d::OpType::REDUCE, "fabricshm:reduce"),
                           tensors[0], reduction, static_cast<int>(options.rootRank));
    }
    return submit(
        {c10d::OpType::REDUCE, "fabricshm:reduce", tensors[0].nbytes(), tensors, tensors},
        [communicator = communicator_, tensor = tensors[0], reduction,
         root = static_cast<int>(options.rootRank), timeout = timeout_of(options.timeout)] {
            const ReductionBuffer staged(tensor, reduction.carrier);
            fabricshm_call call =
                make_call(FABRICSHM_REDUCE, reduction.dtype,
                          static_cast<std::uint64_t>(staged.buffer().numel()), timeout);
            call.op = reduction.op;
            call.root = root;
            call.input = call.output = staged.buffer().data_ptr();
            communicator->run(call, "reduce");
            // The others' tensors are not touched, as c10d has it.
            if (communicator->rank() == root) staged.store();
        });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::barrier(const c10d::BarrierOptions& options) {
    ending_.check("fabricshm:barrier");
    std::shared_ptr<CudaLane> lane;
    {
        const std::lock_guard lock(cuda_mutex_);
        lane = cuda_;
    }
    // What the ranks have put on their streams comes before it, where they have any.
    if (lane) {
        sequence_.fetch_add(1, std::memory_order_relaxed);  // as in submit()
        return cuda_barrier({lane, c10d::OpType::BARRIER, "fabricshm:barrier"});
    }
    return submit({c10d::OpType::BARRIER, "fabricshm:barrier", 0, {}, {}},
                  [communicator = communicator_, timeout = timeout_of(options.timeout)] {
                      communicator->run(make_call(FABRICSHM_BARRIER, FABRICSHM_U8, 0, timeout),
                                        "pass the barrier");
                  });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::transfer(fabricshm_kind kind,
                                                               TensorList& tensors, int peer,
                                                               int tag) {
    const bool sends = kind == FABRICSHM_SEND;
    ending_.check(sends ? "fabricshm:send" : "fabricshm:recv");
    const Refuse refuse(sends ? "send" : "recv");
    c10d::assertSingleElement(refuse, tensors);
    are_on_cuda(sends ? "send" : "recv", tensors);
    TORCH_CHECK(tag >= 0, "Tag must be nonnegative");
    TORCH_CHECK(peer == FABRICSHM_ANY_PEER || (peer >= 0 && peer < getSize()),
                "fabricshm: there is no rank ", peer, " in a group of ", getSize());
    // Transfers move bytes, whatever the dtype is: both ends have to agree on the size alone.
    fabricshm_call call = make_call(kind, FABRICSHM_U8, 0, timeout_of(c10d::kUnsetTimeout));
    call.peer = peer;
    call.tag = tag;
    const at::NoGradGuard no_grad;
    if (sends) {
        return noted(PointToPointWork::start(*communicator_, executor_, call, c10d::OpType::SEND,
                                             "fabricshm:send", tensors[0]));
    }
    const bool anybody = peer == FABRICSHM_ANY_PEER;
    return noted(PointToPointWork::start(
        *communicator_, executor_, call, anybody ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
        anybody ? "fabricshm:recvAnySource" : "fabricshm:recv", tensors[0]));
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::send(TensorList& tensors, int to, int tag) {
    TORCH_CHECK(to >= 0, "fabricshm: there is no rank ", to);
    return transfer(FABRICSHM_SEND, tensors, to, tag);
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::recv(TensorList& tensors, int from, int tag) {
    TORCH_CHECK(from >= 0, "fabricshm: there is no rank ", from);
    return transfer(FABRICSHM_RECV, tensors, from, tag);
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::recvAnysource(TensorList& tensors, int tag) {
    return transfer(FABRICSHM_RECV, tensors, FABRICSHM_ANY_PEER, tag);
}

}  // namespace fabricshm::torch_backend

#include "libfabricshm/torch/cuda_operations.hpp"

#include <fabricshm/cuda.h>

#include <functional>
#include <utility>

#include "libfabricshm/torch/buffers.hpp"
#include "libfabricshm/torch/cuda_work.hpp"
#include "libfabricshm/torch/reductions.hpp"

namespace fabricshm::torch_backend {
namespace {

CudaWorkRef launch(const CudaTarget& to, const char* what, const CudaTensors& inputs,
                   const CudaTensors& outputs, const std::function<void()>& body,
                   bool blocks_host = false) {
    auto work = c10::make_intrusive<CudaWork>(to.lane, to.lane->communicator().rank(), to.type,
                                              to.title, what, inputs, outputs);
    if (blocks_host) work->block_host();
    CudaTensors held = inputs;
    held.insert(held.end(), outputs.begin(), outputs.end());
    work->launch(body, std::move(held));
    return work;
}

// Bodies run with the lane's stream as the current one: torch's copies are on it, too.

void all_reduce_on(const CudaLane& lane, const ReductionBuffer& staged,
                   const Reduction& reduction) {
    const at::Tensor& buffer = staged.buffer();
    check(fabricshm_allreduce_on_stream(lane.group(), buffer.data_ptr(), buffer.data_ptr(),
                                        static_cast<std::uint64_t>(buffer.numel()), reduction.dtype,
                                        reduction.op, lane.stream().handle()),
          "all-reduce");
}

// As bytes: nothing is computed of the elements.
void broadcast_on(const CudaLane& lane, const at::Tensor& buffer, int root, const char* what) {
    check(fabricshm_broadcast_on_stream(lane.group(), buffer.data_ptr(), buffer.nbytes(),
                                        FABRICSHM_U8, root, lane.stream().handle()),
          what);
}

void all_gather_on(const CudaLane& lane, const at::Tensor& input, const at::Tensor& output,
                   const char* what) {
    check(fabricshm_all_gather_on_stream(lane.group(), input.data_ptr(), output.data_ptr(),
                                         input.nbytes(), FABRICSHM_U8, lane.stream().handle()),
          what);
}

at::Tensor empty_row(const at::Tensor& like, std::int64_t elements) {
    return at::empty({elements}, like.options());
}

// Hands out what lies one behind the other; what is in place already is left there.
void copy_out(const at::Tensor& row, const CudaTensors& outputs) {
    std::int64_t at = 0;
    for (const at::Tensor& output : outputs) {
        output.copy_(row.narrow(0, at, output.numel()).view(output.sizes()));
        at += output.numel();
    }
}

void gather_on(const CudaLane& lane, const at::Tensor& input, const CudaTensors& outputs) {
    const at::Tensor mine = input.contiguous();
    // Chunks of one tensor are the buffer; their first one is where it begins.
    if (lie_in_a_row(outputs)) return all_gather_on(lane, mine, outputs[0], "all-gather");
    const at::Tensor all = empty_row(mine, mine.numel() * lane.communicator().size());
    all_gather_on(lane, mine, all, "all-gather");
    copy_out(all, outputs);
}

}  // namespace

CudaWorkRef cuda_broadcast(const CudaTarget& to, const at::Tensor& tensor, int root) {
    return launch(to, "broadcast", {tensor}, {tensor}, [&] {
        const at::Tensor buffer = tensor.contiguous();
        broadcast_on(*to.lane, buffer, root, "broadcast");
        const bool receives = to.lane->communicator().rank() != root;
        if (receives && !buffer.is_same(tensor)) tensor.copy_(buffer);
    });
}

CudaWorkRef cuda_all_reduce(const CudaTarget& to, const CudaTensors& tensors,
                            const Reduction& reduction) {
    return launch(to, "all-reduce", tensors, tensors, [&] {
        for (const at::Tensor& tensor : tensors) {
            const ReductionBuffer staged(tensor, reduction.carrier);
            staged.weigh(reduction.factor);
            all_reduce_on(*to.lane, staged, reduction);
            staged.store();
        }
    });
}

CudaWorkRef cuda_reduce(const CudaTarget& to, const at::Tensor& tensor, const Reduction& reduction,
                        int root) {
    return launch(to, "reduce", {tensor}, {tensor}, [&] {
        const ReductionBuffer staged(tensor.clone(at::MemoryFormat::Contiguous), reduction.carrier);
        all_reduce_on(*to.lane, staged, reduction);
        if (to.lane->communicator().rank() == root) tensor.copy_(staged.buffer());
    });
}

CudaWorkRef cuda_all_gather(const CudaTarget& to, const CudaTensors& inputs,
                            const std::vector<CudaTensors>& outputs) {
    CudaTensors all;
    for (const CudaTensors& list : outputs) all.insert(all.end(), list.begin(), list.end());
    return launch(to, "all-gather", inputs, all, [&] {
        for (std::size_t i = 0; i < inputs.size(); ++i) gather_on(*to.lane, inputs[i], outputs[i]);
    });
}

CudaWorkRef cuda_gather(const CudaTarget& to, const at::Tensor& input, const CudaTensors& outputs) {
    return launch(to, "gather", {input}, outputs, [&] {
        const at::Tensor mine = input.contiguous();
        const at::Tensor all = empty_row(mine, mine.numel() * to.lane->communicator().size());
        all_gather_on(*to.lane, mine, all, "gather");
        copy_out(all, outputs);
    });
}

CudaWorkRef cuda_scatter(const CudaTarget& to, const at::Tensor& output, const CudaTensors& inputs,
                         int root) {
    return launch(to, "scatter", inputs, {output}, [&] {
        const Communicator& ranks = to.lane->communicator();
        const at::Tensor all = inputs.empty() ? empty_row(output, output.numel() * ranks.size())
                                              : joined(inputs, output.scalar_type());
        broadcast_on(*to.lane, all, root, "scatter");
        copy_out(all.narrow(0, output.numel() * ranks.rank(), output.numel()), {output});
    });
}

CudaWorkRef cuda_reduce_scatter(const CudaTarget& to, const at::Tensor& output,
                                const CudaTensors& parts, const Reduction& reduction) {
    return launch(to, "reduce-scatter", parts, {output}, [&] {
        const CudaLane& lane = *to.lane;
        const auto rank = static_cast<std::size_t>(lane.communicator().rank());
        const at::Tensor whole = joined(parts, reduction.carrier);
        bool are_equal = true;
        std::int64_t before = 0;
        for (std::size_t i = 0; parts.size() > 1 && i < parts.size(); ++i) {
            are_equal = are_equal && parts[i].numel() == output.numel();
            if (i < rank) before += parts[i].numel();
        }
        if (!are_equal) {
            // On the device all parts are of one size. `whole` is no tensor of the caller.
            const ReductionBuffer staged(whole, reduction.carrier);
            all_reduce_on(lane, staged, reduction);
            return copy_out(staged.buffer().narrow(0, before, output.numel()), {output});
        }
        const bool fits = output.is_contiguous() && output.scalar_type() == reduction.carrier;
        const at::Tensor target = fits ? output : empty_row(whole, output.numel());
        check(fabricshm_reduce_scatter_on_stream(lane.group(), whole.data_ptr(), target.data_ptr(),
                                                 static_cast<std::uint64_t>(output.numel()),
                                                 reduction.dtype, reduction.op,
                                                 lane.stream().handle()),
              "reduce-scatter");
        if (!fits) copy_out(target, {output});
    });
}

CudaWorkRef cuda_mark(const CudaTarget& to) {
    return launch(to, "end what was coalesced", {}, {}, [] {});
}

CudaWorkRef cuda_barrier(const CudaTarget& to) {
    return launch(
        to, "pass a barrier", {}, {},
        [&] {
            check(fabricshm_barrier_on_stream(to.lane->group(), to.lane->stream().handle()),
                  "pass a barrier");
        },
        /*blocks_host=*/true);
}

}  // namespace fabricshm::torch_backend

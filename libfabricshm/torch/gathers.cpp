// ProcessGroupFabricshm: the operations in which ranks hold parts of a whole.

#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <utility>

#include "libfabricshm/torch/arguments.hpp"
#include "libfabricshm/torch/buffers.hpp"
#include "libfabricshm/torch/process_group.hpp"
#include "libfabricshm/torch/reductions.hpp"

namespace fabricshm::torch_backend {
namespace {

using c10d::OpType;

// What decides the delay: see delay_for().
std::size_t total_bytes(const TensorList& tensors) {
    std::size_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
    return bytes;
}

// In the order of the ranks' lists, in which c10d has them.
TensorList flattened(const TensorLists& lists) {
    TensorList all;
    for (const TensorList& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
}

// Said before anything is submitted: afterwards the other ranks would be waiting already.
void require_one_per_rank(const Refuse& refuse, const TensorList& tensors, int size) {
    if (tensors.size() == static_cast<std::size_t>(size)) return;
    refuse("Incorrect number of tensors: one per rank is needed, " + std::to_string(size) +
           ", but there are " + std::to_string(tensors.size()));
}

// Same bytes from every rank: a gather of unlike parts is not what these operations are.
void require_alike(const Refuse& refuse, const at::Tensor& model, const TensorList& tensors) {
    c10d::assertTypeAndSizesMatch(refuse, tensors, model.options(), model.sizes());
}

// As bytes: a gather does not interpret elements.
// Input and outputs may each be memory as it is, or a copy: FlatBuffer decides.
void gather_everywhere(const Communicator& communicator, const at::Tensor& input,
                       const TensorList& outputs, Milliseconds timeout) {
    const FlatBuffer mine({input});
    const FlatBuffer all(outputs);
    mine.load();
    fabricshm_call call = make_call(FABRICSHM_ALL_GATHER, FABRICSHM_U8, mine.bytes(), timeout);
    call.input = mine.data();
    call.output = all.data();
    communicator.run(call, "all-gather");
    all.store();
}

void scatter_reduction(const Communicator& communicator, const at::Tensor& whole,
                       const at::Tensor& output, const std::vector<std::uint64_t>& counts,
                       const Reduction& reduction, Milliseconds timeout) {
    // Straight into the output where its type and its strides allow it.
    at::Tensor target = output;
    if (!output.is_contiguous() || output.scalar_type() != reduction.carrier) {
        target = at::empty(output.sizes(), output.options().dtype(reduction.carrier));
    }
    fabricshm_call call = make_call(FABRICSHM_REDUCE_SCATTER, reduction.dtype, 0, timeout);
    call.op = reduction.op;
    call.counts = counts.data();
    call.input = whole.data_ptr();
    call.output = target.data_ptr();
    communicator.run(call, "reduce-scatter");
    if (!target.is_same(output)) output.copy_(target);
}

// Elements, and not bytes: a reduction interprets them.
std::vector<std::uint64_t> element_counts(const TensorList& tensors) {
    std::vector<std::uint64_t> counts;
    for (const at::Tensor& t : tensors) counts.push_back(static_cast<std::uint64_t>(t.numel()));
    return counts;
}

// Each rank passes how much it sends and how much it expects; the library compares the two and
// names a rank with which they differ.
void exchange(const Communicator& communicator, const FlatBuffer& to, const FlatBuffer& from,
              const std::vector<std::uint64_t>& sent, const std::vector<std::uint64_t>& received,
              Milliseconds timeout) {
    from.load();
    fabricshm_call call = make_call(FABRICSHM_ALL_TO_ALL, FABRICSHM_U8, 0, timeout);
    call.counts = sent.data();
    call.recv_counts = received.data();
    call.input = from.data();
    call.output = to.data();
    communicator.run(call, "all-to-all");
    to.store();
}

// Bytes per rank from splits along dimension 0; no splits means equal ones.
// Rows of a tensor are equally long, so bytes are in proportion.
std::vector<std::uint64_t> split_bytes(const at::Tensor& tensor,
                                       const std::vector<std::int64_t>& splits, int size) {
    const auto ranks = static_cast<std::size_t>(size);
    if (splits.empty()) return std::vector<std::uint64_t>(ranks, tensor.nbytes() / ranks);
    // A tensor without dimensions is one row.
    const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    const std::uint64_t row = rows == 0 ? 0 : tensor.nbytes() / static_cast<std::uint64_t>(rows);
    std::vector<std::uint64_t> bytes;
    for (const std::int64_t split : splits)
        bytes.push_back(static_cast<std::uint64_t>(split) * row);
    return bytes;
}

}  // namespace

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::allgather(
    TensorLists& outputs, TensorList& inputs, const c10d::AllgatherOptions& options) {
    const Refuse refuse("allgather");
    c10d::assertSingleElementInput(refuse, inputs);
    if (outputs.size() != 1) refuse("requires one list of output tensors");
    require_one_per_rank(refuse, outputs[0], getSize());
    const bool on_cuda = are_on_cuda("allgather", flattened({inputs, outputs[0]}));
    require_alike(refuse, inputs[0], outputs[0]);
    if (on_cuda) {
        return cuda_all_gather(on_device(inputs[0], OpType::ALLGATHER, "fabricshm:all_gather"),
                               inputs, outputs);
    }
    return submit(
        {OpType::ALLGATHER, "fabricshm:all_gather", total_bytes(outputs[0]), inputs, outputs[0]},
        [communicator = communicator_, input = inputs[0], output = outputs[0],
         timeout = timeout_of(options.timeout)] {
            gather_everywhere(*communicator, input, output, timeout);
        });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
    const Refuse refuse("_allgather_base");
    const bool on_cuda = are_on_cuda("_allgather_base", TensorList{output, input});
    // Checked here, since c10d checks lists only.
    if (output.scalar_type() != input.scalar_type()) refuse("tensors must have the same dtype");
    // By number of elements: c10d leaves the shapes to the caller.
    if (output.numel() != input.numel() * getSize()) {
        refuse("output tensor size must be equal to world_size times input tensor size");
    }
    const TensorList inputs{input};
    if (on_cuda) {
        return cuda_all_gather(
            on_device(input, OpType::_ALLGATHER_BASE, "fabricshm:_all_gather_base"), inputs,
            {{output}});
    }
    return submit(
        {OpType::_ALLGATHER_BASE, "fabricshm:_all_gather_base", output.nbytes(), inputs, {output}},
        [communicator = communicator_, input, output, timeout = timeout_of(options.timeout)] {
            gather_everywhere(*communicator, input, {output}, timeout);
        });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::allgather_coalesced(
    TensorLists& outputs, TensorList& inputs, const c10d::AllgatherOptions& options) {
    const Refuse refuse("allgather_coalesced");
    c10d::assertNonEmpty(refuse, inputs);
    if (outputs.size() != static_cast<std::size_t>(getSize())) {
        refuse("output lists should be equal to world size");
    }
    for (const TensorList& list : outputs) {
        if (list.size() != inputs.size()) refuse("invalid output size: expected one per input");
        for (std::size_t i = 0; i < list.size(); ++i) require_alike(refuse, inputs[i], {list[i]});
    }
    TensorList all = flattened(outputs);
    if (are_on_cuda("allgather_coalesced", flattened({inputs, all}))) {
        TensorLists by_input(inputs.size());
        for (const TensorList& list : outputs) {
            for (std::size_t i = 0; i < list.size(); ++i) by_input[i].push_back(list[i]);
        }
        return cuda_all_gather(
            on_device(inputs[0], OpType::ALLGATHER_COALESCED, "fabricshm:all_gather"), inputs,
            by_input);
    }
    const std::size_t bytes = total_bytes(all);
    return submit(
        {OpType::ALLGATHER_COALESCED, "fabricshm:all_gather", bytes, inputs, std::move(all)},
        [communicator = communicator_, inputs, outputs, timeout = timeout_of(options.timeout)] {
            // One gather after the other, as many as there are inputs: all ranks have the same
            // list.
            for (std::size_t i = 0; i < inputs.size(); ++i) {
                TensorList output;
                for (const TensorList& list : outputs) output.push_back(list[i]);
                gather_everywhere(*communicator, inputs[i], output, timeout);
            }
        });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::gather(TensorLists& outputs,
                                                             TensorList& inputs,
                                                             const c10d::GatherOptions& options) {
    const Refuse refuse("gather");
    const int root = static_cast<int>(options.rootRank);
    c10d::assertRootRank(refuse, root, getSize());
    c10d::assertSingleElementInput(refuse, inputs);
    TensorList output;
    if (getRank() == root) {
        if (outputs.size() != 1) refuse("requires a single-element output list");
        output = outputs[0];
        require_one_per_rank(refuse, output, getSize());
    } else if (!outputs.empty()) {
        refuse("requires empty output on non-root");
    }
    const bool on_cuda = are_on_cuda("gather", flattened({inputs, output}));
    require_alike(refuse, inputs[0], output);
    if (on_cuda) {
        return cuda_gather(on_device(inputs[0], OpType::GATHER, "fabricshm:gather"), inputs[0],
                           output);
    }
    // By what all ranks bring: this decides how long the worker leaves it to its caller.
    const std::size_t bytes = inputs[0].nbytes() * static_cast<std::size_t>(getSize());
    return submit({OpType::GATHER, "fabricshm:gather", bytes, inputs, output},
                  [communicator = communicator_, input = inputs[0], output, root,
                   timeout = timeout_of(options.timeout)] {
                      const FlatBuffer mine({input});
                      const FlatBuffer all(output);
                      mine.load();
                      fabricshm_call call =
                          make_call(FABRICSHM_GATHER, FABRICSHM_U8, mine.bytes(), timeout);
                      call.root = root;
                      call.input = mine.data();
                      call.output = all.data();
                      communicator->run(call, "gather");
                      all.store();
                  });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::gather_single(
    at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
    const Refuse refuse("gather_single");
    TensorLists outputs;
    if (getRank() == static_cast<int>(options.rootRank)) {
        if (!output.is_contiguous()) refuse("the output tensor has to be contiguous");
        if (output.numel() != input.numel() * getSize()) {
            refuse("the output tensor needs room for the input of each of " +
                   std::to_string(getSize()) + " ranks");
        }
        const at::Tensor row = output.view({-1});
        TensorList parts;
        for (int rank = 0; rank < getSize(); ++rank) {
            parts.push_back(row.narrow(0, rank * input.numel(), input.numel()).view(input.sizes()));
        }
        outputs.push_back(std::move(parts));
    }
    TensorList inputs{input};
    return gather(outputs, inputs, options);
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::scatter(TensorList& outputs,
                                                              TensorLists& inputs,
                                                              const c10d::ScatterOptions& options) {
    const Refuse refuse("scatter");
    const int root = static_cast<int>(options.rootRank);
    c10d::assertRootRank(refuse, root, getSize());
    c10d::assertSingleElementOutput(refuse, outputs);
    TensorList input;
    if (getRank() == root) {
        if (inputs.size() != 1) refuse("requires a single-element input list");
        input = inputs[0];
        require_one_per_rank(refuse, input, getSize());
    } else if (!inputs.empty()) {
        refuse("requires empty input on non-root");
    }
    const bool on_cuda = are_on_cuda("scatter", flattened({outputs, input}));
    require_alike(refuse, outputs[0], input);
    if (on_cuda) {
        return cuda_scatter(on_device(outputs[0], OpType::SCATTER, "fabricshm:scatter"), outputs[0],
                            input, root);
    }
    const std::size_t bytes = outputs[0].nbytes() * static_cast<std::size_t>(getSize());
    return submit({OpType::SCATTER, "fabricshm:scatter", bytes, input, outputs},
                  [communicator = communicator_, output = outputs[0], input, root,
                   timeout = timeout_of(options.timeout)] {
                      // Only the root has something to hand out; with the others it is empty
                      // memory.
                      const FlatBuffer all(input);
                      const FlatBuffer mine({output});
                      all.load();
                      fabricshm_call call =
                          make_call(FABRICSHM_SCATTER, FABRICSHM_U8, mine.bytes(), timeout);
                      call.root = root;
                      call.input = all.data();
                      call.output = mine.data();
                      communicator->run(call, "scatter");
                      mine.store();
                  });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::reduce_scatter(
    TensorList& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
    const Refuse refuse("reduce_scatter");
    c10d::assertSingleElementOutput(refuse, outputs);
    if (inputs.size() != 1) refuse("requires one list of input tensors");
    const TensorList& parts = inputs[0];
    require_one_per_rank(refuse, parts, getSize());
    const bool on_cuda = are_on_cuda("reduce_scatter", flattened({outputs, parts}));
    // Parts may differ between ranks, but the part that becomes mine has to fit my output.
    require_alike(refuse, outputs[0], {parts[static_cast<std::size_t>(getRank())]});
    const Reduction reduction = reduction_of(outputs[0].scalar_type(), options.reduceOp);
    if (on_cuda) {
        return cuda_reduce_scatter(
            on_device(outputs[0], OpType::REDUCE_SCATTER, "fabricshm:reduce_scatter"), outputs[0],
            parts, reduction);
    }
    return submit(
        {OpType::REDUCE_SCATTER, "fabricshm:reduce_scatter", total_bytes(parts), parts, outputs},
        [communicator = communicator_, output = outputs[0], parts, reduction,
         timeout = timeout_of(options.timeout)] {
            scatter_reduction(*communicator, joined(parts, reduction.carrier), output,
                              element_counts(parts), reduction, timeout);
        });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
    const Refuse refuse("_reduce_scatter_base");
    const bool on_cuda = are_on_cuda("_reduce_scatter_base", TensorList{output, input});
    if (output.scalar_type() != input.scalar_type()) {
        refuse("input tensor must be the same type as the output tensor.");
    }
    if (input.numel() != output.numel() * getSize()) {
        refuse("input tensor must be the same size as output size times world size");
    }
    const Reduction reduction = reduction_of(output.scalar_type(), options.reduceOp);
    const TensorList inputs{input};
    if (on_cuda) {
        return cuda_reduce_scatter(
            on_device(output, OpType::_REDUCE_SCATTER_BASE, "fabricshm:_reduce_scatter_base"),
            output, inputs, reduction);
    }
    return submit({OpType::_REDUCE_SCATTER_BASE,
                   "fabricshm:_reduce_scatter_base",
                   input.nbytes(),
                   inputs,
                   {output}},
                  [communicator = communicator_, input, output, reduction,
                   timeout = timeout_of(options.timeout)] {
                      const std::vector<std::uint64_t> counts(
                          static_cast<std::size_t>(communicator->size()),
                          static_cast<std::uint64_t>(output.numel()));
                      scatter_reduction(*communicator, joined({input}, reduction.carrier), output,
                                        counts, reduction, timeout);
                  });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
    std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    const Refuse refuse("alltoall_base");
    const bool on_cuda = are_on_cuda("alltoall_base", TensorList{output, input});
    if (output.scalar_type() != input.scalar_type()) refuse("tensors must have the same dtype");
    c10d::checkSplitSizes(input_splits, input, getSize());
    c10d::checkSplitSizes(output_splits, output, getSize());
    const TensorList inputs{input};
    if (on_cuda) {
        return all_to_all_on_host({output}, inputs, [&](TensorList& to, TensorList& from) {
            return alltoall_base(to[0], from[0], output_splits, input_splits, options);
        });
    }
    return submit({OpType::ALLTOALL_BASE,
                   "fabricshm:all_to_all",
                   input.nbytes() + output.nbytes(),
                   inputs,
                   {output}},
                  [communicator = communicator_, input, output,
                   sent = split_bytes(input, input_splits, getSize()),
                   received = split_bytes(output, output_splits, getSize()),
                   timeout = timeout_of(options.timeout)] {
                      exchange(*communicator, FlatBuffer({output}), FlatBuffer({input}), sent,
                               received, timeout);
                  });
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::alltoall(
    TensorList& outputs, TensorList& inputs, const c10d::AllToAllOptions& options) {
    const Refuse refuse("alltoall");
    require_one_per_rank(refuse, outputs, getSize());
    require_one_per_rank(refuse, inputs, getSize());
    if (are_on_cuda("alltoall", flattened({inputs, outputs}))) {
        return all_to_all_on_host(outputs, inputs, [&](TensorList& to, TensorList& from) {
            return alltoall(to, from, options);
        });
    }
    return submit(
        {OpType::ALLTOALL, "fabricshm:all_to_all", total_bytes(inputs) + total_bytes(outputs),
         inputs, outputs},
        [communicator = communicator_, inputs, outputs, timeout = timeout_of(options.timeout)] {
            exchange(*communicator, FlatBuffer(outputs), FlatBuffer(inputs), byte_counts(inputs),
                     byte_counts(outputs), timeout);
        });
}

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::allgather_into_tensor_coalesced(
    TensorList& outputs, TensorList& inputs, const c10d::AllgatherOptions& options) {
    WorkRef last;
    // Queued in order, so that the last one's end is the end of all.
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        last = _allgather_base(outputs.at(i), inputs[i], options);
    }
    return last;
}

ProcessGroupFabricshm::WorkRef ProcessGroupFabricshm::reduce_scatter_tensor_coalesced(
    TensorList& outputs, TensorList& inputs, const c10d::ReduceScatterOptions& options) {
    WorkRef last;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        last = _reduce_scatter_base(outputs.at(i), inputs[i], options);
    }
    return last;
}
#endif

}  // namespace fabricshm::torch_backend

#include "libfabricshm/torch/reductions.hpp"

#include <cstdint>
#include <vector>

namespace fabricshm::torch_backend {
namespace {

// Gathers one contiguous tensor of each rank; rank r's has counts[r] bytes.
void gather_bytes(const Communicator& communicator, const at::Tensor& mine, at::Tensor& all,
                  const std::vector<std::uint64_t>& counts, std::chrono::milliseconds timeout) {
    fabricshm_call call = make_call(FABRICSHM_ALL_GATHER, FABRICSHM_U8, 0, timeout);
    call.counts = counts.data();
    call.input = mine.data_ptr();
    call.output = all.data_ptr();
    communicator.run(call, "all-reduce a sparse tensor");
}

// Ranks have different numbers of entries; a rank that does not know the others' cannot make room
// for them.
std::vector<std::int64_t> gather_entry_counts(const Communicator& communicator, std::int64_t mine,
                                              std::chrono::milliseconds timeout) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(communicator.size()));
    fabricshm_call call = make_call(FABRICSHM_ALL_GATHER, FABRICSHM_I64, 1, timeout);
    call.input = &mine;
    call.output = counts.data();
    communicator.run(call, "all-reduce a sparse tensor");
    return counts;
}

std::vector<std::uint64_t> scaled(const std::vector<std::int64_t>& counts, std::uint64_t bytes) {
    std::vector<std::uint64_t> result;
    for (const std::int64_t count : counts) {
        result.push_back(static_cast<std::uint64_t>(count) * bytes);
    }
    return result;
}

}  // namespace

ReductionBuffer::ReductionBuffer(const at::Tensor& tensor, at::ScalarType carrier)
    // No copy where type and strides are right already.
    : tensor_(tensor), buffer_(tensor.to(carrier).contiguous()) {}

void ReductionBuffer::weigh(double factor) const {
    // A factor of 0 takes a rank out of the sum, whatever it computed: 0 * NaN would not.
    if (factor == 0) buffer_.zero_();
    if (factor != 0 && factor != 1) buffer_.mul_(factor);
}

void ReductionBuffer::store() const {
    if (!buffer_.is_same(tensor_)) tensor_.copy_(buffer_);
}

// Types without arithmetic in the library are added up in their carrier, see Reduction.
at::Tensor joined(const std::vector<at::Tensor>& parts, at::ScalarType carrier) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& part : parts) rows.push_back(part.to(carrier).reshape({-1}));
    return rows.size() == 1 ? rows[0] : at::cat(rows);
}

void all_reduce(const Communicator& communicator, const at::Tensor& tensor,
                const Reduction& reduction, std::chrono::milliseconds timeout) {
    const ReductionBuffer staged(tensor, reduction.carrier);
    staged.weigh(reduction.factor);
    fabricshm_call call = make_call(FABRICSHM_ALLREDUCE, reduction.dtype,
                                    static_cast<std::uint64_t>(staged.buffer().numel()), timeout);
    call.op = reduction.op;
    call.input = call.output = staged.buffer().data_ptr();
    communicator.run(call, "all-reduce");
    staged.store();
}

void all_reduce_sparse(const Communicator& communicator, const at::Tensor& tensor,
                       std::chrono::milliseconds timeout) {
    // Each index once, and in order: counts are those of entries that mean something.
    const at::Tensor mine = tensor.coalesce();
    // Entries by row, so that the rows of all ranks make one tensor.
    const at::Tensor indices = mine.indices().t().contiguous();
    const at::Tensor values = mine.values().contiguous();
    const auto counts = gather_entry_counts(communicator, indices.size(0), timeout);
    std::int64_t total = 0;
    for (const std::int64_t count : counts) total += count;

    at::Tensor all_indices = at::empty({total, indices.size(1)}, indices.options());
    std::vector<std::int64_t> shape = values.sizes().vec();
    std::int64_t row = values.element_size();
    for (std::size_t i = 1; i < shape.size(); ++i) row *= shape[i];
    shape[0] = total;
    // Of all ranks: entries come behind each other by rank.
    at::Tensor all_values = at::empty(shape, values.options());
    const auto index_row = static_cast<std::uint64_t>(indices.size(1)) * sizeof(std::int64_t);
    gather_bytes(communicator, indices, all_indices, scaled(counts, index_row), timeout);
    gather_bytes(communicator, values, all_values, scaled(counts, static_cast<std::uint64_t>(row)),
                 timeout);

    // Coalescing adds up the entries that several ranks have: that is the reduction.
    tensor.copy_(at::sparse_coo_tensor(all_indices.t(), all_values, tensor.sizes(),
                                       at::TensorOptions().dtype(values.scalar_type()))
                     .coalesce());
}

}  // namespace fabricshm::torch_backend

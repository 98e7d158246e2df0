#include "libfabricshm/torch/buffers.hpp"

#include <cstring>

#include "libfabricshm/torch/arena_allocator.hpp"

namespace fabricshm::torch_backend {
namespace {

// An empty tensor may have no address.
void* first_address(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
        if (tensor.nbytes() != 0) return tensor.data_ptr();
    }
    return nullptr;
}

}  // namespace

// The outputs of an all_gather are usually chunks of one tensor: then the library writes straight
// into them. An empty tensor lies anywhere.
bool lie_in_a_row(const std::vector<at::Tensor>& tensors) {
    const char* expected = nullptr;
    for (const at::Tensor& tensor : tensors) {
        if (!tensor.is_contiguous()) return false;
        if (tensor.nbytes() == 0) continue;
        const char* start = static_cast<const char*>(tensor.data_ptr());
        if (expected != nullptr && start != expected) return false;
        expected = start + tensor.nbytes();
    }
    return true;
}

bool are_on_cuda(const char* what, const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
        TORCH_CHECK(tensor.defined(), "fabricshm: ", what, " got an undefined tensor");
        TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), "fabricshm: ", what, " got a tensor on ",
                    tensor.device(),
                    "; the backend works on CPU and CUDA tensors, use another backend for it");
        TORCH_CHECK(tensor.layout() == at::kStrided, "fabricshm: ", what, " takes dense tensors");
        TORCH_CHECK(tensor.device() == tensors[0].device(), "fabricshm: ", what, " got tensors on ",
                    tensors[0].device(), " and on ", tensor.device(),
                    "; those of one call are on one device");
    }
    return !tensors.empty() && tensors[0].is_cuda();
}

FlatBuffer::FlatBuffer(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
    // Bytes: what the tensors are made of does not matter to a gather.
    for (const at::Tensor& tensor : tensors_) bytes_ += tensor.nbytes();
    if (lie_in_a_row(tensors_)) {
        data_ = first_address(tensors_);
        return;
    }
    // So that peers can read it in place: the copy into it is then the only one.
    const ArenaScope in_arena;
    copy_ = at::empty({static_cast<std::int64_t>(bytes_)}, at::kByte);
    data_ = copy_.data_ptr();
}

void FlatBuffer::load() const {
    // The tensors are the buffer: nothing to bring together.
    if (!copy_.defined()) return;
    auto* to = static_cast<char*>(data_);
    for (const at::Tensor& tensor : tensors_) {
        // A copy only where strides make it necessary.
        const at::Tensor source = tensor.contiguous();
        if (source.nbytes() != 0) std::memcpy(to, source.data_ptr(), source.nbytes());
        to += source.nbytes();
    }
}

void FlatBuffer::store() const {
    if (!copy_.defined()) return;
    const auto* from = static_cast<const char*>(data_);
    for (const at::Tensor& tensor : tensors_) {
        at::Tensor target = tensor;
        // Bytes are in the order of a contiguous tensor: strides are undone by torch's own copy.
        if (!tensor.is_contiguous()) target = at::empty_like(tensor, at::MemoryFormat::Contiguous);
        if (target.nbytes() != 0) std::memcpy(target.data_ptr(), from, target.nbytes());
        if (!target.is_same(tensor)) tensor.copy_(target);
        from += target.nbytes();
    }
}

std::vector<std::uint64_t> byte_counts(const std::vector<at::Tensor>& tensors) {
    std::vector<std::uint64_t> counts;
    counts.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) counts.push_back(tensor.nbytes());
    return counts;
}

}  // namespace fabricshm::torch_backend

// Between lists of tensors, as c10d passes them, and the single buffers the library works on.

#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace fabricshm::torch_backend {

/// Raises unless all are dense tensors of the CPU, or all of one CUDA device, which is true.
/// `what` is the operation, for the text.
bool are_on_cuda(const char* what, const std::vector<at::Tensor>& tensors);

/// Whether they are without gaps, each behind the one before it.
bool lie_in_a_row(const std::vector<at::Tensor>& tensors);

/// Many tensors as one buffer. When they lie one behind the other in memory, as the chunks of one
/// tensor do, the buffer is that memory; otherwise it is new memory, in the arena when it is large.
class FlatBuffer {
  public:
    /// Holds the tensors. With their memory as the buffer it costs no copy; otherwise load() and
    /// store() are one each.
    explicit FlatBuffer(const std::vector<at::Tensor>& tensors);

    void* data() const { return data_; }
    std::uint64_t bytes() const { return bytes_; }

    /// Fills the buffer from the tensors; nothing to do when they are the same memory.
    void load() const;
    /// Hands it out to the tensors.
    void store() const;

  private:
    std::vector<at::Tensor> tensors_;
    at::Tensor copy_;  // undefined: the tensors are the buffer
    void* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

/// Bytes of each tensor, as the library's `counts`.
std::vector<std::uint64_t> byte_counts(const std::vector<at::Tensor>& tensors);

}  // namespace fabricshm::torch_backend

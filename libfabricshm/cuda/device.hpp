// DeviceContext: one GPU as this process uses it: its primary context and our kernels in it.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/cuda/driver.hpp"

namespace fabricshm::gpu {

enum class Kernel : int { kCopy, kReduce, kCollective, kStep, kCount };

/// The code of the kernels, as cuModuleLoadData takes it. Null: this library was built without.
struct KernelImages {
    const void* reduce = nullptr;    // kCopy, kReduce, kCollective
    const void* optimise = nullptr;  // kStep
};

/// Those that were built in.
KernelImages embedded_kernels() noexcept;

/// Memory that kernels may read whenever a graph of theirs is launched.
struct LastingWords {
    Pointer on_device = 0;
    void* pinned = nullptr;
};

/// Thread-safe. The primary context is the one that the CUDA runtime and PyTorch use.
class DeviceContext : public std::enable_shared_from_this<DeviceContext> {
  public:
    /// Retains the context of device `ordinal` and loads the kernels, or finds one that has words
    /// to keep. kInvalid: there is no such device. kUnsupported: no kernels were built in, or none
    /// of them for this device.
    static Result<std::shared_ptr<DeviceContext>> open(const Driver& driver, int ordinal,
                                                       const KernelImages& images);
    /// Unloads and releases. After cudaDeviceReset(), or in a child of fork(): nothing is left.
    ~DeviceContext();
    DeviceContext(const DeviceContext&) = delete;
    DeviceContext& operator=(const DeviceContext&) = delete;

    const Driver& driver() const noexcept { return driver_; }
    Handle context() const noexcept { return context_; }
    int ordinal() const noexcept { return ordinal_; }
    int multiprocessors() const noexcept { return multiprocessors_; }
    /// Of the device, the same in all processes.
    const std::array<std::uint64_t, 2>& uuid() const noexcept { return uuid_; }

    /// The words stay, and with them the context and its kernels, until the process ends or the
    /// device is reset: the library does not know when a graph is launched.
    void keep(const LastingWords& words);

    /// Puts a kernel with one argument, `bytes` of it, on `stream`, of this context. No waiting, no
    /// allocation: allowed in a capture.
    Result<void> launch(Kernel kernel, unsigned int blocks, const void* argument,
                        Handle stream) const;

    /// The address under which this context reaches what a caller gave as a pointer; 0: it does
    /// not. Allowed in a capture.
    Pointer reach(const void* pointer) const noexcept;
    /// False: the bytes go on behind the end of the allocation that they begin in. Only of
    /// allocations whose end is known, those of cuMemAlloc: a range of cuMemCreate may have several
    /// of them. Allowed in a capture.
    bool is_inside_allocation(Pointer address, std::uint64_t bytes) const noexcept;

  private:
    DeviceContext(const Driver& driver, int ordinal);
    bool is_usable() const;
    Result<void> load(const KernelImages& images);
    Result<void> load_module(const void* image, std::size_t slot);
    Result<void> read_attributes();

    const Driver& driver_;
    const int ordinal_;
    const int process_;
    Device device_ = 0;
    Handle context_ = nullptr;
    int multiprocessors_ = 1;
    std::array<std::uint64_t, 2> uuid_{};
    std::array<Handle, 2> modules_{};
    std::array<Handle, static_cast<std::size_t>(Kernel::kCount)> functions_{};
    mutable std::mutex kept_mutex_;
    std::vector<LastingWords> kept_;
};

}  // namespace fabricshm::gpu

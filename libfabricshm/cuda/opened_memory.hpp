// OpenedMemory: an allocation of another process in the address space of this one's device.

#pragma once

#include <memory>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/cuda/device.hpp"

namespace fabricshm::gpu {

/// A driver opens a handle once for each context of a process: what is opened here again is the
/// same mapping, which is closed with the last of them. So a quota counts it once. Thread-safe;
/// move-only.
class OpenedMemory {
  public:
    /// `rank` is for the words of a failure. kNoMemory: a quota or the device is full.
    /// kUnsupported: the driver does not open it, for whatever reason: what another process gave as
    /// its handle is input.
    static Result<OpenedMemory> open(std::shared_ptr<const DeviceContext> device,
                                     const cuda::IpcHandle& handle, int rank);

    OpenedMemory(OpenedMemory&& other) noexcept = default;
    OpenedMemory& operator=(OpenedMemory&&) = delete;
    /// Whatever runs on it has ended. A context that is gone has taken it along.
    ~OpenedMemory();

    Pointer base() const noexcept { return base_; }
    /// From `base` on, as this process's driver knows it.
    Bytes bytes() const noexcept { return bytes_; }

  private:
    OpenedMemory(std::shared_ptr<const DeviceContext> device, Pointer base, Bytes bytes)
        : device_(std::move(device)), base_(base), bytes_(bytes) {}

    std::shared_ptr<const DeviceContext> device_;  // null: moved from
    Pointer base_;
    Bytes bytes_;
};

}  // namespace fabricshm::gpu

// DeviceArena: an arena in the address space of one GPU.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "libfabricshm/cuda/device.hpp"
#include "libfabricshm/cuda/registration.hpp"

namespace fabricshm::gpu {

/// Goes before the mapping does. Thread-safe.
class DeviceArena {
  public:
    static Result<std::shared_ptr<DeviceArena>> make(std::shared_ptr<DeviceContext> device,
                                                     std::byte* base, Bytes bytes,
                                                     Bytes chunk = kRegisterChunk);
    DeviceArena(std::shared_ptr<DeviceContext> device, std::byte* base, Registration registration)
        : device_(std::move(device)), base_(base), registration_(std::move(registration)) {}

    const DeviceContext& device() const noexcept { return *device_; }
    /// For what outlives the arena.
    const std::shared_ptr<DeviceContext>& shared_device() const noexcept { return device_; }
    std::byte* host() const noexcept { return base_; }
    Bytes bytes() const noexcept { return registration_.bytes(); }
    Pointer base() const noexcept { return registration_.base(); }

    /// Where [pointer, pointer + bytes) begins in the arena, given as an address of this process or
    /// of the device. Nothing: it is not all inside.
    std::optional<Bytes> offset_of(const void* pointer, Bytes bytes) const noexcept;

  private:
    const std::shared_ptr<DeviceContext> device_;  // longer than the registration in it
    std::byte* const base_;
    const Registration registration_;
};

}  // namespace fabricshm::gpu

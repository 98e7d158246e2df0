// Registration: a mapping of the pool in the address space of the process's GPUs.

#pragma once

#include <cstddef>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/cuda/driver.hpp"

namespace fabricshm::gpu {

/// Drivers take less than 512 GiB in one registration; half of that is a round number of the
/// largest pages.
inline constexpr Bytes kRegisterChunk = 256 * kGiB;

/// All of it, in chunks that lie one after the other on the device as they do here: so an address
/// of the mapping is one of the device plus a constant, also across chunks. (Where the device can
/// use the host's own addresses, which is every 64-bit Linux, the constant is 0.)
///
/// Registering pins the memory: every page of it is there from then on, and stays where it is.
/// Thread-safe once made; move-only.
class Registration {
  public:
    /// Registers [base, base + bytes) in chunks of `chunk`, with `context` current. After a failure
    /// nothing is registered. kNoMemory, kUnsupported, kExists (some of it is registered already),
    /// kBroken; kUnsupported also when the chunks are not one range on the device.
    static Result<Registration> make(const Driver& driver, Handle context, std::byte* base,
                                     Bytes bytes, Bytes chunk = kRegisterChunk);

    Registration(Registration&& other) noexcept;
    Registration& operator=(Registration&&) = delete;
    /// Undoes it, before the mapping goes. A context that is gone has taken it along. A child of
    /// fork() has none of the parent's devices and undoes nothing.
    ~Registration();

    /// Of the first byte, on the device.
    Pointer base() const noexcept { return base_; }
    Bytes bytes() const noexcept { return bytes_; }
    std::size_t chunks() const noexcept { return chunks_.size(); }

  private:
    Registration(const Driver& driver, Handle context);
    Result<void> add(std::byte* host, Bytes bytes);
    void undo() noexcept;

    const Driver* driver_;  // nullptr: moved from
    Handle context_;
    int process_;
    Pointer base_ = 0;
    Bytes bytes_ = 0;  // that are registered
    std::vector<std::byte*> chunks_;
};

}  // namespace fabricshm::gpu

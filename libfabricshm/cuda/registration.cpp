#include "libfabricshm/cuda/registration.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm::gpu {

Registration::Registration(const Driver& driver, Handle context)
    : driver_(&driver), context_(context), process_(::getpid()) {}

Registration::Registration(Registration&& other) noexcept
    : driver_(std::exchange(other.driver_, nullptr)),
      context_(other.context_),
      process_(other.process_),
      base_(other.base_),
      bytes_(other.bytes_),
      chunks_(std::move(other.chunks_)) {}

Registration::~Registration() {
    if (driver_ != nullptr && process_ == ::getpid()) undo();
}

Result<Registration> Registration::make(const Driver& driver, Handle context, std::byte* base,
                                        Bytes bytes, Bytes chunk) {
    const CurrentContext current(driver, context);
    FABRIC_TRY_VOID(driver.check(current.status(), "register memory: make the context current"));
    Registration made(driver, context);
    // Before the first is registered, so that nothing can throw between one and its entry.
    made.chunks_.reserve((bytes + chunk - 1) / chunk);
    for (Bytes at = 0; at < bytes; at += chunk) {
        FABRIC_TRY_VOID(made.add(base + at, std::min(chunk, bytes - at)));
    }
    return made;
}

Result<void> Registration::add(std::byte* host, Bytes bytes) {
    // Not as I/O memory, also where it is a CXL device's: that is for memory without pages.
    const Status registered =
        driver_->host_register(host, bytes, kRegisterPortable | kRegisterDeviceMap);
    FABRIC_TRY_VOID(driver_->check(registered, "register memory"));
    chunks_.push_back(host);
    Pointer device = 0;
    FABRIC_TRY_VOID(driver_->check(driver_->host_pointer(&device, host, 0),
                                   "register memory: its address on the device"));
    if (chunks_.size() == 1) base_ = device;
    if (device != base_ + bytes_) {
        return explain({Errc::kUnsupported, 0, "register memory"},
                       "chunk %zu is at %#llx on the device, not next to the one before",
                       chunks_.size() - 1, device);
    }
    bytes_ += bytes;
    return {};
}

void Registration::undo() noexcept {
    // Its own context, since the thread that closes an arena may have none, or another device's.
    const CurrentContext current(*driver_, context_);
    if (current.status() != cuda::kSuccess) return;
    for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend(); ++chunk) {
        const Status status = driver_->host_unregister(*chunk);
        if (status == cuda::kSuccess || went_with_context(status)) continue;
        // The mapping goes in any case: the driver holds its pages until the process ends.
        log(LogLevel::kWarning, "memory at %p stays registered with the GPU: %s",
            static_cast<void*>(*chunk), driver_->name_of(status));
    }
    chunks_.clear();
}

}  // namespace fabricshm::gpu

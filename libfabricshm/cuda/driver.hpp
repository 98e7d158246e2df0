// Driver: the CUDA driver of this machine, found when it is first asked for, so that nothing needs
// it to be there.

#pragma once

#include <memory>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/cuda/driver_entries.hpp"

namespace fabricshm::gpu {

/// The oldest driver whose functions have the parameters of the table, CUDA 12.0.
inline constexpr int kMinDriverVersion = 12000;

/// Its functions. Plain calls of the driver: check() makes a Result of what they return.
class Driver {
  public:
    /// The driver of the library that $FABRIC_CUDA names ("off": none), else of libcuda.so.1. Once
    /// per process, thread-safe; the library stays loaded. kUnsupported, explained: there is no
    /// library, it lacks a function, it does not start, or it has no device. kVersion: it is older
    /// than kMinDriverVersion.
    static Result<const Driver*> find();

    /// As find(), of one library, without keeping the answer. For tests.
    static Result<std::unique_ptr<const Driver>> open(const char* library);

#define FABRIC_CUDA_MEMBER(member, name, parameters) Status(*member) parameters = nullptr;
    FABRIC_CUDA_ENTRIES(FABRIC_CUDA_MEMBER)
#undef FABRIC_CUDA_MEMBER

    int version = 0;  // 1000 * major + 10 * minor
    int devices = 0;

    /// "CUDA_ERROR_OUT_OF_MEMORY", or "unknown" for a number that this driver does not know.
    const char* name_of(Status status) const noexcept;

    /// The error that a status stands for, with its name and what was done: kNoMemory when the
    /// device or a vGPU's quota is full, kInvalid where a capture does not allow it, kUnsupported
    /// where this device or driver can't do it, kBroken for all else: a context that has had such
    /// an error can often do nothing more.
    Result<void> check(Status status, const char* step) const noexcept;

  private:
    Result<void> look_up(const char* library);
    Result<void> start(const char* library);
};

/// Whether what belonged to the context is gone with it: nothing is left to be undone.
constexpr bool went_with_context(Status status) noexcept {
    return status == kDeinitialised || status == kInvalidContext || status == kContextDestroyed ||
           status == kNotInitialised || status == kNotRegistered;
}

/// Makes a context the calling thread's, and puts back the one before. Costs next to nothing where
/// it is the thread's already.
class CurrentContext {
  public:
    CurrentContext(const Driver& driver, Handle context) noexcept
        : driver_(driver),
          is_other_(!is_current(driver, context)),
          status_(is_other_ ? driver.push_context(context) : cuda::kSuccess) {}
    ~CurrentContext() {
        Handle popped = nullptr;
        if (is_other_ && status_ == cuda::kSuccess) driver_.pop_context(&popped);
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

    Status status() const noexcept { return status_; }

  private:
    static bool is_current(const Driver& driver, Handle context) noexcept {
        Handle now = nullptr;
        return driver.current_context(&now) == cuda::kSuccess && now == context;
    }

    const Driver& driver_;
    const bool is_other_;
    const Status status_;
};

}  // namespace fabricshm::gpu

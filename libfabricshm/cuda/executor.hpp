// Executor: what does one rank's part of a device group's operations: a GPU, in the order of its
// streams, or the calling thread.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "kernels/cuda/host_rank.hpp"
#include "kernels/cuda/launch.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/cuda/device_arena.hpp"

namespace fabricshm::gpu {

class Executor {
  public:
    struct Range {
        std::byte* host = nullptr;  // in this process
        Pointer base = 0;           // as the executor reaches it
        Bytes bytes = 0;
    };
    /// Of this rank alone; those of a device as long as its context, since graphs of this rank may
    /// be launched when the executor is gone.
    struct Words {
        Pointer grid = 0;                              // GridWords
        kernels::cuda::StatusWords* status = nullptr;  // here
        Pointer status_address = 0;                    // as the executor reaches it
    };

    /// A GPU, `ranks_here` of whose ranks share its multiprocessors.
    static Result<std::unique_ptr<Executor>> on_device(std::shared_ptr<DeviceArena> arena,
                                                       int ranks_here);
    /// The thread that calls launch(), which returns when the work is done.
    static std::unique_ptr<Executor> on_host(std::byte* base, Bytes bytes);

    virtual ~Executor() = default;
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    const Range& arena() const noexcept { return arena_; }
    const Words& words() const noexcept { return words_; }

    /// Whether what was launched has ended when launch() returns.
    virtual bool is_synchronous() const noexcept = 0;
    /// Where [pointer, pointer + bytes) begins in the arena; nothing: it is not all inside.
    virtual std::optional<Bytes> offset_of(const void* pointer, Bytes bytes) const noexcept = 0;
    /// The device that it is; null: a CPU.
    virtual std::shared_ptr<const DeviceContext> device() const noexcept = 0;
    /// The address of what a caller gave as a pointer; 0: it can't be reached.
    virtual Pointer reach(const void* pointer) const noexcept = 0;
    /// False: [address, address + bytes) is known to end outside of its allocation.
    virtual bool is_inside_allocation(Pointer address, Bytes bytes) const noexcept = 0;
    /// Whether it is captured. kInvalid: there is no such stream here.
    virtual Result<bool> check_stream(Handle stream) const = 0;
    /// A kernel that moves `bytes`, with its argument.
    virtual Result<void> launch(Kernel kernel, Bytes bytes, const void* argument, Handle stream,
                                kernels::cuda::HostWait wait) = 0;
    /// Whether the stream has nothing to do.
    virtual Result<bool> is_done(Handle stream) const = 0;
    /// False: all that was launched went with the context.
    virtual bool has_context() const = 0;

  protected:
    explicit Executor(Range arena) : arena_(arena) {}

    const Range arena_;
    Words words_;
};

}  // namespace fabricshm::gpu

#include "libfabricshm/cuda/executor.hpp"

#include <algorithm>
#include <new>

#include "kernels/copy.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm::gpu {

namespace device = kernels::cuda;

namespace {

constexpr const char* kWaitStep = "wait for a stream";

class DeviceExecutor final : public Executor {
  public:
    DeviceExecutor(std::shared_ptr<DeviceArena> arena, int ranks_here)
        : Executor({arena->host(), arena->base(), arena->bytes()}),
          on_device_(std::move(arena)),
          room_(std::max(on_device_->device().multiprocessors() / std::max(ranks_here, 1), 1)) {}

    ~DeviceExecutor() override {
        if (are_kept_) return;
        const CurrentContext current(driver(), on_device_->device().context());
        if (current.status() != cuda::kSuccess) return;  // they went with the context
        if (words_.grid != 0) driver().free(words_.grid);
        if (words_.status != nullptr) driver().host_free(words_.status);
    }

    Result<void> allocate() {
        FABRIC_TRY_VOID(allocate_words());
        on_device_->shared_device()->keep({words_.grid, words_.status});
        are_kept_ = true;
        return {};
    }

    bool is_synchronous() const noexcept override { return false; }
    std::optional<Bytes> offset_of(const void* pointer, Bytes bytes) const noexcept override {
        return on_device_->offset_of(pointer, bytes);
    }
    std::shared_ptr<const DeviceContext> device() const noexcept override {
        return on_device_->shared_device();
    }
    Pointer reach(const void* pointer) const noexcept override {
        return on_device_->device().reach(pointer);
    }
    bool is_inside_allocation(Pointer address, Bytes bytes) const noexcept override {
        return on_device_->device().is_inside_allocation(address, bytes);
    }
    // Launched on the legacy stream it would break the capture of another one, and end the group.
    Result<bool> check_stream(Handle stream) const override { return is_captured(stream); }
    Result<void> launch(Kernel kernel, Bytes bytes, const void* argument, Handle stream,
                        device::HostWait) override {
        const auto blocks = device::blocks_for(bytes, static_cast<unsigned int>(room_));
        return on_device_->device().launch(kernel, blocks, argument, stream);
    }
    Result<bool> is_done(Handle stream) const override {
        FABRIC_TRY(const bool captured, is_captured(stream));
        if (captured) {
            return explain({Errc::kInvalid, 0, kWaitStep},
                           "the stream is captured: it has nothing to wait for before its graph is "
                           "launched");
        }
        const CurrentContext current(driver(), on_device_->device().context());
        FABRIC_TRY_VOID(driver().check(current.status(), kWaitStep));
        const Status busy = driver().stream_query(stream);
        if (busy == kNotReady) return false;
        FABRIC_TRY_VOID(driver().check(busy, kWaitStep));
        return true;
    }
    bool has_context() const override { return reach(words_.status) != 0; }

  private:
    Result<void> allocate_words() {
        const CurrentContext current(driver(), on_device_->device().context());
        FABRIC_TRY_VOID(
            driver().check(current.status(), "group on a device: make the context current"));
        FABRIC_TRY_VOID(driver().check(driver().alloc(&words_.grid, sizeof(device::GridWords)),
                                       "group on a device: memory"));
        FABRIC_TRY_VOID(
            driver().check(driver().fill_bytes(words_.grid, 0, sizeof(device::GridWords)),
                           "group on a device: clear memory"));
        void* pinned = nullptr;
        FABRIC_TRY_VOID(driver().check(driver().host_alloc(&pinned, sizeof(device::StatusWords),
                                                           kRegisterPortable | kRegisterDeviceMap),
                                       "group on a device: pinned memory"));
        words_.status = new (pinned) device::StatusWords{};
        FABRIC_TRY_VOID(driver().check(driver().host_pointer(&words_.status_address, pinned, 0),
                                       "group on a device: address of pinned memory"));
        // Clearing is in the order of the legacy stream, for which other streams need not wait.
        return driver().check(driver().stream_wait(nullptr), "group on a device: clear memory");
    }
    // Asking breaks no capture, as the calls that it would forbid do.
    Result<bool> is_captured(Handle stream) const {
        const CurrentContext current(driver(), on_device_->device().context());
        FABRIC_TRY_VOID(driver().check(current.status(), kWaitStep));
        int state = 0;
        FABRIC_TRY_VOID(driver().check(
            driver().stream_capturing(stream, &state),
            stream == nullptr ? "use the legacy default stream" : "ask after a stream"));
        return state != 0;
    }
    const Driver& driver() const noexcept { return on_device_->device().driver(); }

    const std::shared_ptr<DeviceArena> on_device_;
    const int room_;
    bool are_kept_ = false;  // the words
};

class HostExecutor final : public Executor {
  public:
    HostExecutor(std::byte* base, Bytes bytes)
        : Executor({base, reinterpret_cast<Pointer>(base), bytes}) {
        words_ = {reinterpret_cast<Pointer>(&grid_), &status_, reinterpret_cast<Pointer>(&status_)};
    }

    bool is_synchronous() const noexcept override { return true; }
    std::optional<Bytes> offset_of(const void* pointer, Bytes bytes) const noexcept override {
        const auto at = reinterpret_cast<Pointer>(pointer);
        if (at < arena_.base || at - arena_.base > arena_.bytes) return std::nullopt;
        const Bytes offset = at - arena_.base;
        return bytes <= arena_.bytes - offset ? std::optional(offset) : std::nullopt;
    }
    std::shared_ptr<const DeviceContext> device() const noexcept override { return nullptr; }
    Pointer reach(const void* pointer) const noexcept override {
        return reinterpret_cast<Pointer>(pointer);
    }
    bool is_inside_allocation(Pointer, Bytes) const noexcept override { return true; }
    // Work of the device would not be waited for: better refused than read too early.
    Result<bool> check_stream(Handle stream) const override {
        if (stream == nullptr) return false;
        return explain({Errc::kInvalid, 0, "operation on a CPU"},
                       "this rank is on a CPU and has no streams: stream is not NULL");
    }
    Result<void> launch(Kernel kernel, Bytes, const void* argument, Handle,
                        device::HostWait wait) override {
        switch (kernel) {
            case Kernel::kCopy:
                copy(*static_cast<const device::CopyArgs*>(argument));
                return {};
            case Kernel::kCollective:
                device::run_collective_on_host(
                    *static_cast<const device::CollectiveArgs*>(argument), wait);
                return {};
            case Kernel::kStep:
                device::run_step_on_host(*static_cast<const device::StepArgs*>(argument), wait);
                return {};
            case Kernel::kReduce:  // no operation of a group is one
            case Kernel::kCount:
                break;
        }
        return explain({Errc::kUnsupported, 0, "operation on a CPU"}, "it is none of a group");
    }
    Result<bool> is_done(Handle stream) const override {
        FABRIC_TRY_VOID(check_stream(stream));
        return true;
    }
    bool has_context() const override { return true; }

  private:
    static void copy(const device::CopyArgs& args) {
        // From here on what is copied is taken to exceed the caches.
        constexpr Bytes kStreamingBytes = 8 * kMiB;
        kernels::copy(reinterpret_cast<void*>(args.destination),
                      reinterpret_cast<const void*>(args.source), args.bytes,
                      args.bytes >= kStreamingBytes);
    }

    device::GridWords grid_{};
    device::StatusWords status_{};
};

}  // namespace

Result<std::unique_ptr<Executor>> Executor::on_device(std::shared_ptr<DeviceArena> arena,
                                                      int ranks_here) {
    auto made = std::make_unique<DeviceExecutor>(std::move(arena), ranks_here);
    FABRIC_TRY_VOID(made->allocate());
    return std::unique_ptr<Executor>(std::move(made));
}

std::unique_ptr<Executor> Executor::on_host(std::byte* base, Bytes bytes) {
    return std::make_unique<HostExecutor>(base, bytes);
}

}  // namespace fabricshm::gpu

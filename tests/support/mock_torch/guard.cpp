// What a torch with CUDA registers of its devices, streams and events, on the mock driver. Two
// devices, which are the same one to the driver.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>

#include "tests/support/mock_torch/driver.hpp"

namespace mock_torch {

namespace {

constexpr c10::DeviceIndex kDevices = 2;
constexpr unsigned kPool = 4;

thread_local c10::DeviceIndex t_device = 0;
thread_local std::array<Handle, kDevices> t_streams{};  // null: the default stream

c10::Stream stream_of(c10::DeviceIndex index, Handle handle) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, index),
                       reinterpret_cast<c10::StreamId>(handle));
}

Handle handle_of(const c10::Stream& stream) {
    return reinterpret_cast<Handle>(stream.id());
}

Handle& current(c10::Device device) {
    const c10::DeviceIndex index = device.has_index() ? device.index() : t_device;
    return t_streams[static_cast<std::size_t>(index)];
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return c10::kCUDA; }
    c10::Device exchangeDevice(c10::Device device) const override {
        const c10::Device before = getDevice();
        setDevice(device);
        return before;
    }
    c10::Device getDevice() const override { return c10::Device(c10::kCUDA, t_device); }
    void setDevice(c10::Device device) const override { t_device = device.index(); }
    void uncheckedSetDevice(c10::Device device) const noexcept override {
        t_device = device.index();
    }
    c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

    c10::Stream getStream(c10::Device device) const noexcept override {
        return stream_of(device.has_index() ? device.index() : t_device, current(device));
    }
    c10::Stream getDefaultStream(c10::Device device) const override {
        return stream_of(device.index(), nullptr);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
        static const std::array<Handle, kPool> pool = [] {
            std::array<Handle, kPool> made{};
            for (Handle& one : made) driver().stream_create(&one, 0);
            return made;
        }();
        static std::atomic<unsigned> next{0};
        return stream_of(device.index(), pool[next++ % kPool]);
    }
    c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
        const c10::Stream before = getStream(stream.device());
        current(stream.device()) = handle_of(stream);
        return before;
    }

    void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
                const c10::EventFlag) const override {
        if (*event == nullptr) driver().event_create(event, 0);
        if (record_captured(*event, handle_of(stream))) return;
        driver().event_record(*event, handle_of(stream));
    }
    void block(void* event, const c10::Stream& stream) const override {
        if (event == nullptr || block_captured(event, handle_of(stream))) return;
        driver().event_block(handle_of(stream), event, 0);
    }
    bool queryEvent(void* event) const override {
        note_unsafe("an event was asked for");
        return event == nullptr || driver().event_query(event) == 0;
    }
    void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
        if (event != nullptr) driver().event_destroy(event);
    }
    bool queryStream(const c10::Stream& stream) const override {
        note_unsafe("a stream was asked for");
        return driver().stream_query(handle_of(stream)) == 0;
    }
    void synchronizeStream(const c10::Stream& stream) const override {
        note_unsafe("a stream was waited for");
        driver().stream_wait(handle_of(stream));
    }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// What autograd asks for the streams that it goes back to after a backward, and
// DistributedDataParallel for its map of parameters that were not used.
struct Hooks final : at::CUDAHooksInterface {
    explicit Hooks(at::CUDAHooksArgs) {}
    bool hasCUDA() const override { return true; }
    bool hasPrimaryContext(int64_t) const override { return true; }
    // All memory of the host is as good: copies are done by the host.
    at::Allocator* getPinnedMemoryAllocator() const override {
        return c10::GetDefaultCPUAllocator();
    }
};

}  // namespace

Handle current_stream() {
    return current(c10::Device(c10::kCUDA, t_device));
}

}  // namespace mock_torch

namespace at {

using CUDAHooks = mock_torch::Hooks;  // found by this name
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at

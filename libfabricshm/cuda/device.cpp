#include "libfabricshm/cuda/device.hpp"

#include <unistd.h>

#include <cstring>
#include <iterator>

#include "kernels/cuda/embedded.hpp"
#include "kernels/cuda/launch.hpp"
#include "libfabricshm/base/lasting.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm::gpu {

namespace {

constexpr std::size_t kReduceModule = 0;
constexpr std::size_t kOptimiseModule = 1;

struct KernelRow {
    const char* name;
    std::size_t module;
};
constexpr KernelRow kKernelRows[] = {{kernels::cuda::kCopyKernel, kReduceModule},
                                     {kernels::cuda::kReduceKernel, kReduceModule},
                                     {kernels::cuda::kCollectiveKernel, kReduceModule},
                                     {kernels::cuda::kStepKernel, kOptimiseModule}};
static_assert(std::size(kKernelRows) == static_cast<std::size_t>(Kernel::kCount));

// Those that have words to keep.
using LastingContexts = Lasting<std::shared_ptr<DeviceContext>>;

}  // namespace

KernelImages embedded_kernels() noexcept {
    return {kernels::cuda::embedded_module("reduce").data,
            kernels::cuda::embedded_module("optimise").data};
}

DeviceContext::DeviceContext(const Driver& driver, int ordinal)
    : driver_(driver), ordinal_(ordinal), process_(::getpid()) {}

DeviceContext::~DeviceContext() {
    if (context_ == nullptr || process_ != ::getpid()) return;
    {
        const CurrentContext current(driver_, context_);
        for (Handle module : modules_) {
            if (current.status() == cuda::kSuccess && module != nullptr) {
                driver_.unload_module(module);  // its failure is the context's, which goes now
            }
        }
    }
    driver_.primary_release(device_);
}

Result<std::shared_ptr<DeviceContext>> DeviceContext::open(const Driver& driver, int ordinal,
                                                           const KernelImages& images) {
    if (ordinal < 0 || ordinal >= driver.devices) {
        return explain({Errc::kInvalid, 0, "open device"}, "there is no device %d: %d are here",
                       ordinal, driver.devices);
    }
    if (images.reduce == nullptr || images.optimise == nullptr) {
        return explain({Errc::kUnsupported, 0, "open device"},
                       "this library was built without nvcc and has no kernels");
    }
    auto kept = LastingContexts::find([&](const auto& one) {
        return &one->driver_ == &driver && one->ordinal_ == ordinal && one->is_usable();
    });
    if (kept != nullptr) return kept;
    std::shared_ptr<DeviceContext> device(new DeviceContext(driver, ordinal));
    FABRIC_TRY_VOID(driver.check(driver.device_get(&device->device_, ordinal), "find device"));
    FABRIC_TRY_VOID(device->read_attributes());
    Handle context = nullptr;
    FABRIC_TRY_VOID(driver.check(driver.primary_retain(&context, device->device_),
                                 "retain the device's context"));
    device->context_ = context;  // from here on the destructor releases it
    FABRIC_TRY_VOID(device->load(images));
    return device;
}

// Not after cudaDeviceReset(), which takes pinned memory along, nor in a child of fork().
bool DeviceContext::is_usable() const {
    if (process_ != ::getpid()) return false;
    const std::lock_guard lock(kept_mutex_);
    const CurrentContext current(driver_, context_);
    Pointer address = 0;
    return current.status() == cuda::kSuccess &&
           driver_.host_pointer(&address, kept_.front().pinned, 0) == cuda::kSuccess;
}

void DeviceContext::keep(const LastingWords& words) {
    {
        const std::lock_guard lock(kept_mutex_);
        kept_.push_back(words);
        if (kept_.size() > 1) return;
    }
    LastingContexts::keep(shared_from_this());
}

Result<void> DeviceContext::read_attributes() {
    FABRIC_TRY_VOID(
        driver_.check(driver_.device_attribute(&multiprocessors_, kMultiprocessorCount, device_),
                      "count multiprocessors"));
    cuda::Uuid uuid{};
    FABRIC_TRY_VOID(driver_.check(driver_.device_uuid(&uuid, device_), "identify device"));
    static_assert(sizeof uuid == sizeof uuid_);
    std::memcpy(uuid_.data(), &uuid, sizeof uuid);
    return {};
}

Result<void> DeviceContext::load(const KernelImages& images) {
    const CurrentContext current(driver_, context_);
    FABRIC_TRY_VOID(driver_.check(current.status(), "load kernels: make the context current"));
    FABRIC_TRY_VOID(load_module(images.reduce, kReduceModule));
    FABRIC_TRY_VOID(load_module(images.optimise, kOptimiseModule));
    for (std::size_t i = 0; i < functions_.size(); ++i) {
        FABRIC_TRY_VOID(
            driver_.check(driver_.get_function(&functions_[i], modules_[kKernelRows[i].module],
                                               kKernelRows[i].name),
                          "load kernels: find one"));
    }
    return {};
}

Result<void> DeviceContext::load_module(const void* image, std::size_t slot) {
    const Status status = driver_.load_module(&modules_[slot], image);
    if (status != kNoBinaryForGpu && status != kUnsupportedPtx) {
        return driver_.check(status, "load kernels");
    }
    int major = 0;
    int minor = 0;
    (void)driver_.device_attribute(&major, kComputeMajor, device_);
    (void)driver_.device_attribute(&minor, kComputeMinor, device_);
    return explain({Errc::kUnsupported, 0, "load kernels"},
                   "no kernels for device %d of compute capability %d.%d and this driver (%s)",
                   ordinal_, major, minor, driver_.name_of(status));
}

Result<void> DeviceContext::launch(Kernel kernel, unsigned int blocks, const void* argument,
                                   Handle stream) const {
    const CurrentContext current(driver_, context_);
    FABRIC_TRY_VOID(driver_.check(current.status(), "launch: make the context current"));
    // The driver copies the argument before it returns; it only ever reads it.
    void* parameters[] = {const_cast<void*>(argument)};
    return driver_.check(
        driver_.launch(functions_[static_cast<std::size_t>(kernel)], blocks, 1, 1,
                       kernels::cuda::kBlockThreads, 1, 1, 0, stream, parameters, nullptr),
        "launch");
}

Pointer DeviceContext::reach(const void* pointer) const noexcept {
    const CurrentContext current(driver_, context_);
    if (current.status() != cuda::kSuccess) return 0;
    Pointer device = 0;
    const Status status = driver_.pointer_attribute(&device, kPointerDevicePointer,
                                                    reinterpret_cast<std::uintptr_t>(pointer));
    return status == cuda::kSuccess ? device : 0;
}

bool DeviceContext::is_inside_allocation(Pointer address, std::uint64_t bytes) const noexcept {
    const CurrentContext current(driver_, context_);
    int has_handle = 0;
    const bool is_known =
        current.status() == cuda::kSuccess &&
        driver_.pointer_attribute(&has_handle, kPointerHasIpcHandle, address) == cuda::kSuccess &&
        has_handle != 0;
    Pointer base = 0;
    std::size_t size = 0;
    if (!is_known || driver_.address_range(&base, &size, address) != cuda::kSuccess) return true;
    return address - base <= size && bytes <= size - (address - base);
}

}  // namespace fabricshm::gpu

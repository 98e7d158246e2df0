// Mock driver: host memory that the device sees, modules and launches, as libfabricshm/cuda uses
// them. Memory of the host that is registered or pinned can be read and written here, unlike the
// device's own; a test may have launches done on it.

#include "tests/support/mock_gpu/host.hpp"

#include <atomic>
#include <new>

#include "tests/support/mock_gpu/device.hpp"
#include "tests/support/mock_gpu/driver.hpp"
#include "tests/support/mock_gpu/streams.hpp"

using namespace mock_gpu;

extern "C" {
Status cuCtxSetCurrent(Handle);
}

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

constexpr Status kRegisteredAlready = 712;
constexpr Status kNotRegistered = 713;

std::map<Handle, std::string>& functions() {
    static auto& made = *new std::map<Handle, std::string>;
    return made;
}

// Whether a kernel was found by name; without, launches pay nothing for being recorded. Relaxed: a
// function's handle is used after its name was given, by the same thread or one that got it there.
std::atomic<bool> g_has_functions{false};

thread_local std::vector<Handle> t_pushed;

// The registration or pinned block that holds `address`, and its place on the device.
bool on_device(std::uintptr_t address, Pointer& device) {
    const HostState& state = *mock_gpu_host();
    Pointer index = 0;
    for (const auto& [base, bytes] : state.registered) {
        const auto start = reinterpret_cast<std::uintptr_t>(base);
        if (address >= start && address - start < bytes) {
            device = address + state.device_offset + index * state.gap;
            return true;
        }
        ++index;
    }
    for (const auto& [base, bytes] : state.pinned) {
        if (address >= base && address - base < bytes) {
            device = address;
            return true;
        }
    }
    return false;
}

}  // namespace

MOCK_EXPORT HostState* mock_gpu_host() {
    static HostState& made = *new HostState;
    return &made;
}

namespace mock_gpu {

// For cuPointerGetAttribute: memory of the host that the device reaches.
bool reaches_host(Pointer address, Pointer& device) {
    const Lock lock(driver().mutex);
    return on_device(address, device);
}

// For the launches of run.cpp.
Status record_launch(Handle function, unsigned int blocks, unsigned int threads, Handle stream,
                     void** parameters) {
    if (!g_has_functions.load(std::memory_order_relaxed)) return kSuccess;
    HostState& state = *mock_gpu_host();
    Launch launch;
    void (*execute)(const char*, unsigned int, const void*) = nullptr;
    {
        const Lock lock(driver().mutex);
        const auto found = functions().find(function);
        if (found == functions().end()) return kSuccess;  // not one that was looked up by name
        if (driver().capturing.count(stream) > 0) return kSuccess;  // done when it is replayed
        if (stream == nullptr && !driver().capturing.empty()) {
            driver().is_capture_broken = true;  // the legacy stream would wait for the captured one
            return kCaptureImplicit;
        }
        if (state.launch_status != kSuccess) return state.launch_status;
        launch.kernel = found->second;
        launch.blocks = blocks;
        launch.threads = threads;
        launch.stream = stream;
        if (parameters != nullptr && state.argument_bytes != 0) {
            const auto* bytes = static_cast<const std::byte*>(parameters[0]);
            launch.argument.assign(bytes, bytes + state.argument_bytes);
        }
        state.launches.push_back(launch);
        execute = state.execute;
    }
    if (execute == nullptr) return kSuccess;
    if (state.own_time) {
        const auto* bytes = static_cast<const std::byte*>(parameters[0]);
        const std::size_t size = state.argument_size(launch.kernel.c_str());
        put_on_stream(stream, [execute, blocks, kernel = launch.kernel,
                               argument = std::vector<std::byte>(bytes, bytes + size)] {
            execute(kernel.c_str(), blocks, argument.data());
        });
        return kSuccess;
    }
    // Without the lock: a kernel may wait for one that another thread launches.
    execute(launch.kernel.c_str(), blocks, parameters[0]);
    return kSuccess;
}

NamedLaunch named_launch(Handle function, unsigned int blocks, unsigned int threads,
                         void** parameters) {
    const Lock lock(driver().mutex);
    const auto found = functions().find(function);
    if (found == functions().end()) return {};
    NamedLaunch launch{function, blocks, threads, {}};
    if (const auto size = mock_gpu_host()->argument_size; size != nullptr) {
        const auto* bytes = static_cast<const std::byte*>(parameters[0]);
        launch.argument.assign(bytes, bytes + size(found->second.c_str()));
    }
    return launch;
}

// For cuModuleGetFunction.
void name_function(Handle function, const char* name) {
    const Lock lock(driver().mutex);
    functions()[function] = name;
    g_has_functions.store(true, std::memory_order_relaxed);
}

}  // namespace mock_gpu

MOCK_EXPORT Status cuGetErrorName(Status status, const char** name) {
    if (status == kOutOfMemory) return *name = "CUDA_ERROR_OUT_OF_MEMORY", kSuccess;
    if (status == kInvalidValue) return *name = "CUDA_ERROR_INVALID_VALUE", kSuccess;
    if (status == kInvalidContext) return *name = "CUDA_ERROR_INVALID_CONTEXT", kSuccess;
    if (status == 208) return *name = "CUDA_ERROR_ALREADY_MAPPED", kSuccess;
    if (status == 801) return *name = "CUDA_ERROR_NOT_SUPPORTED", kSuccess;
    if (status == 900) return *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", kSuccess;
    if (status == 901) return *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", kSuccess;
    if (status == 906) return *name = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", kSuccess;
    return kInvalidValue;
}
MOCK_EXPORT Status cuCtxPushCurrent_v2(Handle context) {
    const Lock lock(driver().mutex);
    auto* wanted = static_cast<Context*>(context);
    // One that was reset has ended.
    if (wanted == &driver().primary && driver().primary_count == 0) return kInvalidContext;
    t_pushed.push_back(current());
    cuCtxSetCurrent(context);
    ++mock_gpu_host()->contexts;
    return kSuccess;
}
MOCK_EXPORT Status cuCtxPopCurrent_v2(Handle* context) {
    const Lock lock(driver().mutex);
    if (t_pushed.empty()) return kInvalidContext;
    *context = current();
    cuCtxSetCurrent(t_pushed.back());
    t_pushed.pop_back();
    --mock_gpu_host()->contexts;
    return kSuccess;
}
MOCK_EXPORT Status cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned int flags) {
    const Lock lock(driver().mutex);
    HostState& state = *mock_gpu_host();
    if (current() == nullptr) return kInvalidContext;
    if (state.fail_registration >= 0 && state.fail_registration-- == 0) return state.failure;
    const auto start = reinterpret_cast<std::uintptr_t>(memory);
    for (const auto& [base, length] : state.registered) {
        const auto other = reinterpret_cast<std::uintptr_t>(base);
        if (start < other + length && other < start + bytes) return kRegisteredAlready;
    }
    state.registered[memory] = bytes;
    state.flags.push_back(flags);
    return kSuccess;
}
MOCK_EXPORT Status cuMemHostUnregister(void* memory) {
    const Lock lock(driver().mutex);
    if (current() == nullptr) return kInvalidContext;
    if (mock_gpu_host()->registered.erase(memory) == 0) return kNotRegistered;
    mock_gpu_host()->unregistered.push_back(memory);
    return kSuccess;
}
MOCK_EXPORT Status cuMemHostGetDevicePointer_v2(Pointer* out, void* memory, unsigned int) {
    const Lock lock(driver().mutex);
    return on_device(reinterpret_cast<std::uintptr_t>(memory), *out) ? kSuccess : kInvalidValue;
}
MOCK_EXPORT Status cuMemHostAlloc(void** out, std::size_t bytes, unsigned int) {
    const Lock lock(driver().mutex);
    if (current() == nullptr) return kInvalidContext;
    *out = ::operator new (bytes, std::align_val_t{4096});
    mock_gpu_host()->pinned[reinterpret_cast<std::uintptr_t>(*out)] = bytes;
    return kSuccess;
}
MOCK_EXPORT Status cuMemFreeHost(void* memory) {
    const Lock lock(driver().mutex);
    if (mock_gpu_host()->pinned.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) {
        return kInvalidValue;
    }
    ::operator delete (memory, std::align_val_t{4096});
    return kSuccess;
}
MOCK_EXPORT Status cuModuleUnload(Handle) {
    const Lock lock(driver().mutex);
    --mock_gpu_host()->modules;
    return kSuccess;
}
MOCK_EXPORT Status cuStreamQuery(Handle stream) {
    const Lock lock(driver().mutex);
    if (driver().capturing.count(stream) > 0) {
        driver().is_capture_broken = true;
        return kCaptureUnsupported;
    }
    if (mock_gpu_host()->own_time && !is_stream_done(stream)) return kNotReady;
    return mock_gpu_host()->stream_status;
}

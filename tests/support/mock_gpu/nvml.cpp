// Mock NVML over the same simulated GPU.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "libfabricshm/vgpu/cuda_abi.hpp"
#include "tests/support/mock_gpu/device.hpp"

#define MOCK_EXPORT extern "C" __attribute__((visibility("default")))

using namespace mock_gpu;
using fabricshm::cuda::Handle;
using fabricshm::cuda::Status;

namespace {

char g_handle = 0;

// The GPU's number among all of the host, which is not the driver's where some are hidden.
unsigned int own_index() {
    const char* index = std::getenv("FABRIC_MOCK_NVML_INDEX");
    return index != nullptr ? static_cast<unsigned int>(std::atoi(index)) : 0;
}

// With $FABRIC_MOCK_NVML_MUTE it does not report what processes hold.
unsigned long long used_as_told(const ProcessUse& process) {
    static const bool is_mute = std::getenv("FABRIC_MOCK_NVML_MUTE") != nullptr;
    return is_mute ? fabricshm::cuda::kNvmlNotAvailable : process.used.load();
}

// With $FABRIC_MOCK_MIG it is a slice of a GPU in MIG mode: NVML then calls it by another kind of
// name, and knows an older one of it.
constexpr const char* kBytes = "00112233-4455-6677-8899-aabbccddeeff";
constexpr const char* kOldName = "MIG-GPU-a0a1a2a3-b0b1-c0c1-d0d1-e0e1e2e3e4e5/1/0";

std::string own_name() {
    return (std::getenv("FABRIC_MOCK_MIG") != nullptr ? "MIG-" : "GPU-") + std::string(kBytes);
}

template <typename Process>
Status processes(unsigned int* count, Process* list) {
    unsigned int found = 0;
    for (const ProcessUse& process : device().processes) {
        if (process.pid.load() == 0) continue;
        if (found < *count && list != nullptr) {
            list[found] = {};
            list[found].pid = static_cast<unsigned int>(process.pid.load());
            list[found].used = used_as_told(process);
        }
        ++found;
    }
    const bool fits = found <= *count;
    *count = found;
    return fits ? 0 : fabricshm::cuda::kNvmlTooSmall;
}

}  // namespace

MOCK_EXPORT Status nvmlInit_v2() {
    return 0;
}
MOCK_EXPORT Status nvmlDeviceGetHandleByIndex_v2(unsigned int index, Handle* out) {
    *out = &g_handle;
    return index == own_index() ? 0 : 2;
}
MOCK_EXPORT Status nvmlDeviceGetHandleByUUID(const char* name, Handle* out) {
    *out = &g_handle;
    const bool is_old = std::getenv("FABRIC_MOCK_MIG") != nullptr && std::string(name) == kOldName;
    return is_old || name == own_name() ? 0 : fabricshm::cuda::kNvmlNotFound;
}
MOCK_EXPORT Status nvmlDeviceGetUUID(Handle, char* out, unsigned int bytes) {
    std::strncpy(out, own_name().c_str(), bytes);
    return 0;
}
MOCK_EXPORT Status nvmlDeviceGetIndex(Handle, unsigned int* out) {
    *out = own_index();
    return 0;
}
MOCK_EXPORT Status nvmlDeviceGetMemoryInfo(Handle, fabricshm::cuda::NvmlMemory* out) {
    out->total = device().capacity;
    out->used = used_by_all(device());
    out->free = out->total - std::min<unsigned long long>(out->total, out->used);
    return 0;
}
MOCK_EXPORT Status nvmlDeviceGetMemoryInfo_v2(Handle, fabricshm::cuda::NvmlMemory2* out) {
    fabricshm::cuda::NvmlMemory memory{};
    nvmlDeviceGetMemoryInfo(nullptr, &memory);
    out->total = memory.total;
    out->used = memory.used;
    out->free = memory.free;
    return 0;
}
MOCK_EXPORT Status nvmlDeviceGetComputeRunningProcesses_v3(Handle, unsigned int* count,
                                                           fabricshm::cuda::NvmlProcess2* list) {
    hold_at("asked");
    const Status status = processes(count, list);
    hold_at("answered");
    return status;
}
MOCK_EXPORT Status nvmlDeviceGetComputeRunningProcesses(Handle, unsigned int* count,
                                                        fabricshm::cuda::NvmlProcess1* list) {
    return processes(count, list);
}

// What each process had of the GPU's time since the last sample of any process.
MOCK_EXPORT Status nvmlDeviceGetProcessUtilization(Handle, fabricshm::cuda::NvmlUtilization* out,
                                                   unsigned int* count, unsigned long long) {
    Device& gpu = device();
    const std::uint64_t now = now_ns();
    const std::uint64_t before = gpu.sampled_ns.exchange(now);
    const std::uint64_t window = std::max<std::uint64_t>(1, now - std::min(now, before));
    unsigned int found = 0;
    for (ProcessUse& process : gpu.processes) {
        if (process.pid.load() == 0 || found >= *count) continue;
        const std::uint64_t busy = process.busy_ns.load();
        const std::uint64_t part = busy - process.seen_busy_ns.exchange(busy);
        out[found] = {};
        out[found].pid = static_cast<unsigned int>(process.pid.load());
        out[found].time_us = now / 1000;
        out[found].sm = static_cast<unsigned int>(
            std::min<std::uint64_t>(100, (part * 100 + window / 2) / window));
        ++found;
    }
    *count = found;
    return found > 0 ? 0 : fabricshm::cuda::kNvmlNotFound;
}

// A libnvidia-ml.so.1 of our own with three GPUs: one that works, one that is cut into instances
// and knows no rates, one that fell off the bus. FAKE_NVML=broken in the environment: it does not
// start.
//
// The functions have the names and the binary interface of NVIDIA's library, from its reference.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fabricd/telemetry/nvml_abi.hpp"

using namespace fabricd::nvml;

namespace {

constexpr int kUninitialized = 1;
constexpr int kGpuIsLost = 15;

bool g_started = false;
int g_asked = 0;

Device device(std::uintptr_t index) {
    return reinterpret_cast<Device>(index + 1);
}

bool is_first(Device gpu) {
    return gpu == device(0);
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) int

FAKE nvmlInit_v2() {
    const char* mood = std::getenv("FAKE_NVML");
    if (mood != nullptr && std::strcmp(mood, "broken") == 0) return kUninitialized;
    g_started = true;
    g_asked = 0;
    return kSuccess;
}
FAKE nvmlShutdown() {
    g_started = false;
    return kSuccess;
}
FAKE nvmlDeviceGetCount_v2(unsigned* count) {
    *count = 3;
    return g_started ? kSuccess : kUninitialized;
}
FAKE nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* gpu) {
    if (index == 2) return kGpuIsLost;
    *gpu = device(index);
    return kSuccess;
}
FAKE nvmlDeviceGetName(Device gpu, char* name, unsigned bytes) {
    std::snprintf(name, bytes, "Fake GPU %c", is_first(gpu) ? 'A' : 'B');
    return kSuccess;
}
FAKE nvmlDeviceGetUtilizationRates(Device gpu, Utilization* busy) {
    if (!is_first(gpu)) return kNotSupported;
    // The third look finds that the driver has lost it.
    if (++g_asked == 3) return kGpuIsLost;
    *busy = {75, 40};
    return kSuccess;
}
FAKE nvmlDeviceGetMemoryInfo(Device, Memory* memory) {
    *memory = {80ULL << 30, 60ULL << 30, 20ULL << 30};
    return kSuccess;
}
FAKE nvmlDeviceGetPciInfo_v3(Device gpu, PciInfo* pci) {
    std::memset(pci, 0, sizeof *pci);
    std::snprintf(pci->bus_id, sizeof pci->bus_id, "0000000%d:3B:00.0", is_first(gpu) ? 0 : 1);
    return kSuccess;
}
FAKE nvmlDeviceGetNumGpuCores(Device, unsigned* cores) {
    *cores = 6912;
    return kSuccess;
}
FAKE nvmlDeviceGetPowerUsage(Device, unsigned* milliwatts) {
    *milliwatts = 250'500;
    return kSuccess;
}
FAKE nvmlDeviceGetTemperature(Device, int sensor, unsigned* celsius) {
    *celsius = sensor == kTemperatureOfGpu ? 61 : 0;
    return kSuccess;
}
// No nvmlDeviceGetClockInfo: an optional function that an old driver lacks.

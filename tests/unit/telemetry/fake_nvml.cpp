// A libnvidia-ml.so.1 of our own with three GPUs: one that works, one that is cut into instances
// and knows no rates, one that fell off the bus. FAKE_NVML=broken in the environment: it does not
// start. FAKE_NVML_ECC=N: the first one has N memory errors; FAKE_NVML_XIDS="31 79": these errors
// come at once; FAKE_NVML_SLOW=N: why its clock is lower, in NVML's bits. For N also the path of a
// file with it, which is read each time.
//
// The functions have the names and the binary interface of NVIDIA's library, from its reference.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fabricd/telemetry/nvml_abi.hpp"

using namespace fabricd::nvml;

namespace {

constexpr int kUninitialized = 1;
constexpr int kTimeout = 10;

bool g_started = false;
int g_asked = 0;

Device device(std::uintptr_t index) {
    return reinterpret_cast<Device>(index + 1);
}

bool is_first(Device gpu) {
    return gpu == device(0);
}

unsigned long long number_of(const char* variable) {
    const char* text = std::getenv(variable);
    char line[32] = "";
    if (text != nullptr && text[0] == '/') {
        FILE* file = std::fopen(text, "re");
        text = file != nullptr ? std::fgets(line, sizeof line, file) : nullptr;
        if (file != nullptr) std::fclose(file);
    }
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
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
    // The third poll finds that the driver has lost it, but with FAKE_NVML_STEADY=1.
    if (++g_asked == 3 && number_of("FAKE_NVML_STEADY") == 0) return kGpuIsLost;
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
FAKE nvmlDeviceGetUUID(Device gpu, char* uuid, unsigned bytes) {
    std::snprintf(uuid, bytes, "GPU-fake-%c", is_first(gpu) ? 'a' : 'b');
    return kSuccess;
}
FAKE nvmlDeviceGetTotalEccErrors(Device gpu, int type, int counter, unsigned long long* count) {
    if (!is_first(gpu)) return kNotSupported;
    *count = type == kUncorrected && counter == kSinceLoaded ? number_of("FAKE_NVML_ECC") : 0;
    return kSuccess;
}
FAKE nvmlDeviceGetCurrentClocksThrottleReasons(Device gpu, unsigned long long* reasons) {
    *reasons = is_first(gpu) ? number_of("FAKE_NVML_SLOW") : 0;
    return kSuccess;
}
FAKE nvmlEventSetCreate(EventSet* set) {
    *set = reinterpret_cast<EventSet>(&g_asked);
    return kSuccess;
}
FAKE nvmlEventSetFree(EventSet) {
    return kSuccess;
}
FAKE nvmlDeviceRegisterEvents(Device gpu, unsigned long long, EventSet) {
    return is_first(gpu) ? kSuccess : kNotSupported;
}
// The errors of the environment, one after the other, once.
FAKE nvmlEventSetWait_v2(EventSet, EventData* event, unsigned) {
    const char* left = std::getenv("FAKE_NVML_XIDS");
    if (left == nullptr || *left == 0) return kTimeout;
    char* rest = nullptr;
    *event = {device(0), kXidEvent, std::strtoull(left, &rest, 10), ~0U, ~0U};
    ::setenv("FAKE_NVML_XIDS", std::string(rest).c_str(), 1);
    return kSuccess;
}
// No nvmlDeviceGetClockInfo: an optional function that an old driver lacks.

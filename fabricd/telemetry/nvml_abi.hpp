// The part of NVML's binary interface that is used here, written down from NVIDIA's reference: the
// library is found at run time and its header need not be there when fabricd is built.

#pragma once

namespace fabricd::nvml {

// Every function returns one of many codes; what matters is whether it is this one.
inline constexpr int kSuccess = 0;
inline constexpr int kNotSupported = 3;  // this kind of device does not know
inline constexpr int kGpuIsLost = 15;    // off the bus, or inaccessible for another reason

using Device = struct DeviceOfNvml*;  // opaque

struct Utilization {
    unsigned gpu;     // per cent of the last measuring period in which a kernel ran
    unsigned memory;  // ... in which memory was read or written
};
static_assert(sizeof(Utilization) == 8);

struct Memory {
    unsigned long long total;  // bytes, here and below
    unsigned long long free;
    unsigned long long used;
};
static_assert(sizeof(Memory) == 24);

struct PciInfo {  // of nvmlDeviceGetPciInfo_v3
    char bus_id_legacy[16];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device_id;
    unsigned pci_subsystem_id;
    char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

using EventSet = struct EventSetOfNvml*;  // opaque

struct EventData {  // of nvmlEventSetWait_v2
    Device device;
    unsigned long long type;
    unsigned long long data;  // of kXidEvent: its number
    unsigned gpu_instance;
    unsigned compute_instance;
};
static_assert(sizeof(EventData) == 32);

inline constexpr unsigned long long kXidEvent = 8;
inline constexpr unsigned long long kSlowForHeat = 0x20 | 0x40;  // by software, by hardware
inline constexpr int kUncorrected = 1;
inline constexpr int kSinceLoaded = 0;      // and not over the device's life
inline constexpr unsigned kUuidBytes = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE
inline constexpr int kTemperatureOfGpu = 0;
inline constexpr int kClockOfSm = 1;
inline constexpr unsigned kNameBytes = 96;  // NVML_DEVICE_NAME_V2_BUFFER_SIZE

}  // namespace fabricd::nvml

#include "fabricd/telemetry/nvml_source.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "fabricd/telemetry/nvml_abi.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::HostFiles;
using fabricshm::log;
using fabricshm::LogLevel;
using fabricshm::Result;

struct NvmlSource::Library {
    void* handle = nullptr;
    bool is_ready = false;  // nvmlInit_v2() succeeded, so that it has to be shut down

    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    int (*count)(unsigned*) = nullptr;
    int (*by_index)(unsigned, nvml::Device*) = nullptr;
    int (*name)(nvml::Device, char*, unsigned) = nullptr;
    int (*utilization)(nvml::Device, nvml::Utilization*) = nullptr;
    int (*memory)(nvml::Device, nvml::Memory*) = nullptr;
    // Old drivers lack some of these: then the device has no such number.
    int (*pci)(nvml::Device, nvml::PciInfo*) = nullptr;
    int (*cores)(nvml::Device, unsigned*) = nullptr;
    int (*power)(nvml::Device, unsigned*) = nullptr;
    int (*temperature)(nvml::Device, int, unsigned*) = nullptr;
    int (*clock)(nvml::Device, int, unsigned*) = nullptr;
    int (*uuid)(nvml::Device, char*, unsigned) = nullptr;
    int (*ecc)(nvml::Device, int, int, unsigned long long*) = nullptr;
    int (*throttled)(nvml::Device, unsigned long long*) = nullptr;
    int (*make_events)(nvml::EventSet*) = nullptr;
    int (*want_events)(nvml::Device, unsigned long long, nvml::EventSet) = nullptr;
    int (*next_event)(nvml::EventSet, nvml::EventData*, unsigned) = nullptr;
    int (*free_events)(nvml::EventSet) = nullptr;

    nvml::EventSet events = nullptr;  // nullptr: this driver has none

    ~Library() {
        // While its code is still there.
        if (events != nullptr) free_events(events);
        if (is_ready) shutdown();
        if (handle != nullptr) ::dlclose(handle);
    }

    template <typename Function>
    bool find(Function& function, const char* symbol) {
        function = reinterpret_cast<Function>(::dlsym(handle, symbol));
        return function != nullptr;
    }
    bool find_all();
};

// By name, since NVML comes with the driver: linked against it, the daemon could not start where
// there is none. Those that a driver may lack come first and are not asked about.
bool NvmlSource::Library::find_all() {
    find(pci, "nvmlDeviceGetPciInfo_v3");
    find(cores, "nvmlDeviceGetNumGpuCores");
    find(power, "nvmlDeviceGetPowerUsage");
    find(temperature, "nvmlDeviceGetTemperature");
    find(clock, "nvmlDeviceGetClockInfo");
    find(uuid, "nvmlDeviceGetUUID");
    find(ecc, "nvmlDeviceGetTotalEccErrors");
    find(throttled, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(make_events, "nvmlEventSetCreate");
    find(want_events, "nvmlDeviceRegisterEvents");
    find(next_event, "nvmlEventSetWait_v2");
    find(free_events, "nvmlEventSetFree");
    return find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
           find(count, "nvmlDeviceGetCount_v2") &&
           find(by_index, "nvmlDeviceGetHandleByIndex_v2") && find(name, "nvmlDeviceGetName") &&
           find(utilization, "nvmlDeviceGetUtilizationRates") &&
           find(memory, "nvmlDeviceGetMemoryInfo");
}

struct NvmlSource::Gpu {
    nvml::Device handle = nullptr;
    DeviceSample last;
    DeviceFaults lasting = 0;      // until the next daemon asks the driver
    std::set<std::uint64_t> xids;  // that were logged
};

namespace {

/// Of one poll: a driver that always has another one must not hold up the figures.
constexpr int kMaxEvents = 64;

// The node next to the GPU, as the kernel knows it: NVML writes the address with eight digits of
// domain and in capitals, the kernel with four and in small letters.
int numa_node_of(const nvml::PciInfo& pci, const HostFiles& files) {
    std::string address(pci.bus_id, ::strnlen(pci.bus_id, sizeof pci.bus_id));
    if (address.size() > 12) address.erase(0, address.size() - 12);
    std::ranges::transform(address, address.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const auto text = files.text("/sys/bus/pci/devices/" + address + "/numa_node");
    return text && !text->empty() && text->front() != '-' ? std::atoi(text->c_str()) : -1;
}

// The number that an optional function gives, or -1 without it or when it fails.
template <typename Call>
double ask(bool is_there, double scale, const Call& call) {
    unsigned value = 0;
    return is_there && call(&value) == nvml::kSuccess ? value * scale : -1;
}

}  // namespace

NvmlSource::NvmlSource(std::unique_ptr<Library> library) : library_(std::move(library)) {}
NvmlSource::~NvmlSource() = default;

Result<std::unique_ptr<NvmlSource>> NvmlSource::open(const std::string& name, HostFiles files) {
    auto library = std::make_unique<Library>();
    library->handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library->handle == nullptr) return Error{Errc::kNotFound, 0, "load NVML"};
    if (!library->find_all()) return Error{Errc::kUnsupported, 0, "functions of NVML"};
    if (const int code = library->init(); code != nvml::kSuccess) {
        return Error{Errc::kSystem, code, "start NVML"};
    }
    library->is_ready = true;
    std::unique_ptr<NvmlSource> source(new NvmlSource(std::move(library)));
    FABRIC_TRY_VOID(source->find_devices(files));
    return source;
}

Result<void> NvmlSource::find_devices(const HostFiles& files) {
    unsigned count = 0;
    if (const int code = library_->count(&count); code != nvml::kSuccess) {
        return Error{Errc::kSystem, code, "count GPUs"};
    }
    for (unsigned index = 0; index < count; ++index) {
        Gpu gpu;
        // One that fell off the bus keeps its number, and is left out.
        if (library_->by_index(index, &gpu.handle) != nvml::kSuccess) continue;
        // NVML's number, which counts all GPUs of the host: CUDA_VISIBLE_DEVICES changes nothing.
        gpu.last.name = "gpu" + std::to_string(index);
        gpu.last.kind = DeviceKind::kGpu;
        char model[nvml::kNameBytes] = {};
        if (library_->name(gpu.handle, model, sizeof model - 1) == nvml::kSuccess) {
            gpu.last.description = model;
        }
        nvml::PciInfo pci{};
        if (library_->pci != nullptr && library_->pci(gpu.handle, &pci) == nvml::kSuccess) {
            gpu.last.numa_node = numa_node_of(pci, files);
        }
        gpu.last.units =
            static_cast<int>(std::max(0.0, ask(library_->cores != nullptr, 1, [&](unsigned* value) {
                                          return library_->cores(gpu.handle, value);
                                      })));
        char uuid[nvml::kUuidBytes] = {};
        if (library_->uuid != nullptr &&
            library_->uuid(gpu.handle, uuid, sizeof uuid - 1) == nvml::kSuccess) {
            gpu.last.uuid = uuid;
        }
        gpus_.push_back(std::move(gpu));
    }
    want_errors();
    return {};
}

// Old drivers have no events, and some GPUs not this one: then errors show in other ways, or not.
void NvmlSource::want_errors() {
    Library& nvml = *library_;
    const bool has_events = nvml.make_events != nullptr && nvml.want_events != nullptr &&
                            nvml.next_event != nullptr && nvml.free_events != nullptr;
    if (!has_events || nvml.make_events(&nvml.events) != nvml::kSuccess) {
        nvml.events = nullptr;
        return;
    }
    for (const Gpu& gpu : gpus_) (void)nvml.want_events(gpu.handle, nvml::kXidEvent, nvml.events);
}

// Each number once per device: a program that fails again and again would fill the log.
void NvmlSource::take_errors() {
    nvml::EventData event{};
    for (int i = 0; library_->events != nullptr && i < kMaxEvents; ++i) {
        if (library_->next_event(library_->events, &event, 0) != nvml::kSuccess) return;
        for (Gpu& gpu : gpus_) {
            if (gpu.handle != event.device || event.type != nvml::kXidEvent) continue;
            const bool is_fatal = is_fatal_xid(event.data);
            if (is_fatal) gpu.lasting = gpu.lasting | DeviceFault::kXid;
            if (!gpu.xids.insert(event.data).second) continue;
            log(LogLevel::kWarning, "device %s: Xid %llu%s", gpu.last.name.c_str(), event.data,
                is_fatal ? ": it has to be reset" : ", mostly an error of a program");
        }
    }
}

// What is wrong with a GPU that answers.
DeviceFaults NvmlSource::faults_of(const Gpu& gpu) const {
    DeviceFaults faults = gpu.lasting;
    unsigned long long number = 0;
    const bool has_ecc =
        library_->ecc != nullptr && library_->ecc(gpu.handle, nvml::kUncorrected,
                                                  nvml::kSinceLoaded, &number) == nvml::kSuccess;
    if (has_ecc && number > 0) faults = faults | DeviceFault::kEcc;
    const bool is_slowed = library_->throttled != nullptr &&
                           library_->throttled(gpu.handle, &number) == nvml::kSuccess &&
                           (number & nvml::kSlowForHeat) != 0;
    return is_slowed ? faults | DeviceFault::kThermal : faults;
}

void NvmlSource::sample(std::int64_t, std::vector<DeviceSample>& devices) {
    take_errors();
    for (Gpu& gpu : gpus_) {
        DeviceSample& device = gpu.last;
        nvml::Utilization busy{};
        nvml::Memory memory{};
        const int asked = library_->utilization(gpu.handle, &busy);
        // A GPU that is cut into instances has no such rate, but answers all the same.
        const bool answers = asked == nvml::kSuccess || asked == nvml::kNotSupported;
        device.stale = !answers || library_->memory(gpu.handle, &memory) != nvml::kSuccess;
        if (asked == nvml::kGpuIsLost) device.faults = device.faults | DeviceFault::kStopped;
        if (!device.stale) {
            device.faults = faults_of(gpu);
            device.busy = asked == nvml::kSuccess ? std::min(busy.gpu / 100.0, 1.0) : -1;
            device.memory_busy = asked == nvml::kSuccess ? std::min(busy.memory / 100.0, 1.0) : -1;
            device.memory_total = static_cast<std::int64_t>(memory.total);
            device.memory_used = static_cast<std::int64_t>(memory.used);
            // NVML counts power in milliwatts.
            device.power_watts = ask(library_->power != nullptr, 1e-3, [&](unsigned* value) {
                return library_->power(gpu.handle, value);
            });
            device.temperature_c = ask(library_->temperature != nullptr, 1, [&](unsigned* value) {
                return library_->temperature(gpu.handle, nvml::kTemperatureOfGpu, value);
            });
            device.clock_mhz = ask(library_->clock != nullptr, 1, [&](unsigned* value) {
                return library_->clock(gpu.handle, nvml::kClockOfSm, value);
            });
        }
        // One that did not answer goes along with its last numbers, marked as old.
        devices.push_back(device);
    }
}

}  // namespace fabricd

// NVML reports the same as the driver: the vGPU is the device, and its processes are all there are.

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/nvml.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

// Room for what NVML answers: four times as many as a ledger has slots, since it reports the whole
// GPU.
constexpr unsigned int kMaxProcesses = 1024;
constexpr int kMaxLooks = 4;  // for a quiet moment, in unknown_to()

Vgpu* vgpu_of_nvml(Handle device) {
    // Looked up here and not with the driver's helpers(): a program without NVML does not load it.
    static const auto uuid_of =
        reinterpret_cast<Status (*)(Handle, char*, unsigned int)>(nvml_symbol("nvmlDeviceGetUUID"));
    static const auto index_of =
        reinterpret_cast<Status (*)(Handle, unsigned int*)>(nvml_symbol("nvmlDeviceGetIndex"));
    attach_vgpus();  // a program may query before it computes
    char uuid[96] = "";
    unsigned int index = ~0U;
    if (uuid_of == nullptr || uuid_of(device, uuid, sizeof uuid) != kNvmlSuccess) uuid[0] = '\0';
    if (index_of == nullptr || index_of(device, &index) != kNvmlSuccess) index = ~0U;
    return vgpu_of_gpu(uuid, index);
}

// The same three numbers as cuMemGetInfo gives.
void narrow(Vgpu& vgpu, unsigned long long& total, unsigned long long& free,
            unsigned long long& used) {
    const std::uint64_t granted = vgpu.granted();
    const std::uint64_t held = std::min(granted, vgpu.used());
    total = std::min<unsigned long long>(total, granted);
    free = std::min<unsigned long long>(free, granted - held);
    used = total - std::min(total, free);
}

Status nvml_memory_1(Status (*own)(Handle, NvmlMemory*), Handle device, NvmlMemory* memory) {
    const Status status = own(device, memory);
    Vgpu* vgpu = status == kNvmlSuccess ? vgpu_of_nvml(device) : nullptr;
    if (vgpu != nullptr) narrow(*vgpu, memory->total, memory->free, memory->used);
    return status;
}

Status nvml_memory_2(Status (*own)(Handle, NvmlMemory2*), Handle device, NvmlMemory2* memory) {
    const Status status = own(device, memory);
    Vgpu* vgpu = status == kNvmlSuccess ? vgpu_of_nvml(device) : nullptr;
    if (vgpu == nullptr) return status;
    narrow(*vgpu, memory->total, memory->free, memory->used);
    // The driver's own part, which is in the first form's `used`: no part of a vGPU.
    memory->reserved = 0;
    return status;
}

// The vGPU's own processes, with what they hold, in place of all that the GPU has.
template <typename Process>
Status own_processes(Vgpu& vgpu, unsigned int* count, Process* list) {
    const auto uses = vgpu.ledger().uses();
    const auto needed = static_cast<unsigned int>(uses.size());
    // As NVML itself: `count` comes back as what there is, also when the room was too small; a
    // program asks with 0 to learn it.
    const unsigned int room = *count;
    *count = needed;
    if (needed > room || (needed > 0 && list == nullptr)) return kNvmlTooSmall;
    for (unsigned int i = 0; i < needed; ++i) {
        list[i] = {};
        list[i].pid = static_cast<unsigned int>(uses[i].process.pid);
        list[i].used = uses[i].charged;
    }
    return kNvmlSuccess;
}

template <typename Process>
Status processes(Status (*own)(Handle, unsigned int*, Process*), Handle device, unsigned int* count,
                 Process* list) {
    Vgpu* vgpu = count != nullptr ? vgpu_of_nvml(device) : nullptr;
    return vgpu != nullptr ? own_processes(*vgpu, count, list) : own(device, count, list);
}

Status nvml_processes_1(Status (*own)(Handle, unsigned int*, NvmlProcess1*), Handle device,
                        unsigned int* count, NvmlProcess1* list) {
    return processes(own, device, count, list);
}

Status nvml_processes_2(Status (*own)(Handle, unsigned int*, NvmlProcess2*), Handle device,
                        unsigned int* count, NvmlProcess2* list) {
    return processes(own, device, count, list);
}

bool is_nvml_up() {
    static const auto init = reinterpret_cast<Status (*)()>(nvml_symbol("nvmlInit_v2"));
    // NVML counts its initialisations: the program's own shutdown leaves ours.
    static const bool is_up = init != nullptr && init() == kNvmlSuccess;
    return is_up;
}

bool is_name(const std::string& gpu) {
    return gpu.rfind("GPU-", 0) == 0 || gpu.rfind("MIG-", 0) == 0;
}

// nullptr: there is none of that name.
Handle device_by_name(const std::string& name) {
    static const auto by_uuid = reinterpret_cast<Status (*)(const char*, Handle*)>(
        nvml_symbol("nvmlDeviceGetHandleByUUID"));
    Handle device = nullptr;
    const bool found = by_uuid != nullptr && by_uuid(name.c_str(), &device) == kNvmlSuccess;
    return found ? device : nullptr;
}

// NVML's handle of a vGPU's GPU; nullptr without NVML.
Handle device_of(const Vgpu& vgpu) {
    static const auto by_index = reinterpret_cast<Status (*)(unsigned int, Handle*)>(
        nvml_symbol("nvmlDeviceGetHandleByIndex_v2"));
    Handle device = nullptr;
    if (!is_nvml_up()) return nullptr;
    // By name where one is known: NVML's numbers are the host's, CUDA's are the process's.
    if (is_name(vgpu.gpu())) device = device_by_name(vgpu.gpu());
    if (device != nullptr) return device;
    if (is_name(vgpu.uuid())) {
        // The driver does not say whether its device is a GPU or a slice of one in MIG mode.
        device = device_by_name(vgpu.uuid());
        const bool is_found = device != nullptr;
        return is_found ? device : device_by_name("MIG-" + vgpu.uuid().substr(4));
    }
    if (is_name(vgpu.gpu())) return nullptr;
    const auto index = static_cast<unsigned int>(std::strtoul(vgpu.gpu().c_str(), nullptr, 10));
    return by_index != nullptr && by_index(index, &device) == kNvmlSuccess ? device : nullptr;
}

// 0 also where NVML does not report it: nothing is charged then. Only the newest form is asked, of
// which the structure is known; a driver from before it counts contexts as configured, or not at
// all.
std::uint64_t seen_by_nvml(const Vgpu& vgpu) {
    const auto ask = real<Status (*)(Handle, unsigned int*, NvmlProcess2*)>(
        Entry::nvmlDeviceGetComputeRunningProcesses_v3);
    Handle device = device_of(vgpu);
    if (device == nullptr || ask == nullptr) return 0;
    std::vector<NvmlProcess2> list(kMaxProcesses);
    unsigned int count = kMaxProcesses;
    if (ask(device, &count, list.data()) != kNvmlSuccess) return 0;
    for (unsigned int i = 0; i < std::min(count, kMaxProcesses); ++i) {
        if (list[i].pid != vgpu.host_pid()) continue;
        // Taken for a number, what says that there is none would be owed for ever.
        return list[i].used != kNvmlNotAvailable ? list[i].used : 0;
    }
    return 0;
}

// What NVML sees of this process beyond what it is known to hold. While NVML is asked other threads
// may free, and allocate and free again: it is asked again, and in the end all that they can have
// held meanwhile is taken off. So it may be too little, never too much: what is charged as overhead
// comes back only when the process ends.
std::uint64_t unknown_to(const Vgpu& vgpu) {
    std::uint64_t seen = 0;
    std::uint64_t most = 0;
    for (int look = 0; look < kMaxLooks; ++look) {
        const Vgpu::Known before = vgpu.known();
        seen = seen_by_nvml(vgpu);
        const Vgpu::Known after = vgpu.known();
        most = before.bytes + (after.ever - before.ever);
        if (after == before) break;
    }
    return seen - std::min(seen, most);
}

}  // namespace

std::string nvml_name_of(const std::string& name) {
    static const auto uuid_of =
        reinterpret_cast<Status (*)(Handle, char*, unsigned int)>(nvml_symbol("nvmlDeviceGetUUID"));
    char uuid[96] = "";
    Handle device = is_nvml_up() ? device_by_name(name) : nullptr;
    const bool is_known = device != nullptr && uuid_of != nullptr &&
                          uuid_of(device, uuid, sizeof uuid) == kNvmlSuccess;
    return is_known ? uuid : "";
}

void settle_overhead(Vgpu& vgpu) {
    if (vgpu.context_bytes() != 0) return;
    // One thread at a time: two that see the same overhead would both charge it.
    static std::mutex& mutex = *new std::mutex;
    const std::lock_guard lock(mutex);
    const bool is_all_charged = vgpu.owe(unknown_to(vgpu));
    static bool said = false;
    if (!is_all_charged && !said) say("%s: a context went over the quota", vgpu.name().c_str());
    said |= !is_all_charged;
}

std::optional<BusyShares> busy_shares(Vgpu& vgpu, std::uint64_t& since_us) {
    static const auto ask =
        reinterpret_cast<Status (*)(Handle, NvmlUtilization*, unsigned int*, unsigned long long)>(
            nvml_symbol("nvmlDeviceGetProcessUtilization"));
    Handle device = device_of(vgpu);
    if (device == nullptr || ask == nullptr) return std::nullopt;
    std::vector<NvmlUtilization> samples(kMaxProcesses);
    unsigned int count = kMaxProcesses;
    const Status status = ask(device, samples.data(), &count, since_us);
    // No samples: no process computed.
    if (status == kNvmlNotFound) count = 0;
    if (status != kNvmlSuccess && status != kNvmlNotFound) return std::nullopt;
    struct Mean {
        double sum = 0.0;
        int count = 0;
    };
    std::map<unsigned int, Mean> by_process;
    for (const LedgerUse& use : vgpu.ledger().uses()) {
        by_process[static_cast<unsigned int>(use.host_pid)] = {};
    }
    // Samples of other vGPUs' processes on the same GPU are passed over, but move the time on.
    for (unsigned int i = 0; i < std::min(count, kMaxProcesses); ++i) {
        const auto& sample = samples[i];
        since_us = std::max<std::uint64_t>(since_us, sample.time_us);
        const auto found = by_process.find(sample.pid);
        if (found == by_process.end()) continue;
        found->second.sum += std::min(sample.sm, 100U) / 100.0;
        ++found->second.count;
    }
    // Each process's mean over its samples, and then all of them together: kernels of several
    // processes take turns on a GPU, so that their shares add up. Never to more than the whole,
    // which they may by rounding.
    BusyShares busy;
    for (const auto& [pid, mean] : by_process) {
        const double share = mean.count > 0 ? mean.sum / mean.count : 0.0;
        busy.processes[pid] = share;
        busy.all = std::min(1.0, busy.all + share);
    }
    return busy;
}

FABRIC_NVML_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda

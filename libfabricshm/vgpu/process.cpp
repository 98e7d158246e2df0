// Which vGPUs this process has, and which device each of them is.

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/proto/vgpu_messages.hpp"
#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/nvml.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

constexpr int kDevicesMax = 64;  // of one host; those beyond are not limited

struct Process {
    // Guards what has no order of its own below. Held while the daemon is asked: another thread's
    // cuInit must not go on before the vGPUs are there.
    std::mutex mutex;
    bool attached = false;
    std::string missing;  // why something is not limited that was to be; "": nothing is missing
    bool said_double = false;
    std::vector<std::unique_ptr<Vgpu>> vgpus;
    // Read without the lock, by every call of the driver: a device gets its vGPU once and keeps it.
    std::array<std::atomic<Vgpu*>, kDevicesMax> of_device{};
    // Whether one of them is set: without, calls do not ask the driver for the current device.
    std::atomic<bool> any{false};
};

// Never freed, also not at exit: the program's own destructors still free memory. Replaced in a
// forked child, whose parent's slots are not its own.
std::atomic<Process*> g_process{nullptr};

// In a child nothing is taken over, nor freed: another thread of the parent may have held the lock
// or been in the middle of a change. The child attaches when it calls cuInit, with a slot of its
// own.
void start_anew() noexcept {
    // Release: a thread that finds it finds it whole.
    g_process.store(new Process, std::memory_order_release);
}

Process& process() noexcept {
    // Acquire, against the release of its maker.
    if (Process* made = g_process.load(std::memory_order_acquire); made != nullptr) return *made;
    // Made on the first call and not by a constructor: preloaded, we may be called before ours run.
    static std::once_flag once;
    std::call_once(once, [] {
        start_anew();
        ::pthread_atfork(nullptr, nullptr, start_anew);
    });
    return *g_process.load(std::memory_order_acquire);
}

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

// Places where the daemon may listen, in the order in which trainers try them.
std::vector<std::string> sockets() {
    if (const auto given = variable("FABRIC_VGPU_SOCKET"); !given.empty()) return {given};
    if (const auto attach = variable("FABRIC_SOCKET"); !attach.empty()) {
        return {proto::vgpu_socket_of(attach)};
    }
    std::vector<std::string> found;
    if (const auto folder = variable("XDG_RUNTIME_DIR"); !folder.empty()) {
        found.push_back(proto::vgpu_socket_of(folder + "/fabricd/attach.sock"));
    }
    found.push_back(proto::vgpu_socket_of("/run/fabricd/attach.sock"));
    // Any user may make a folder in /tmp: it counts only when it is this user's own.
    const std::string own = "/tmp/fabricd-" + std::to_string(::geteuid());
    struct stat status {};
    if (::lstat(own.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
        status.st_uid == ::geteuid()) {
        found.push_back(proto::vgpu_socket_of(own + "/attach.sock"));
    }
    return found;
}

std::vector<std::string> wanted_names() {
    std::string list = variable("FABRIC_VGPU");
    if (list.empty()) list = variable("FABRIC_DEVICE");
    std::vector<std::string> names;
    for (std::size_t at = 0; at <= list.size();) {
        const std::size_t end = std::min(list.find(',', at), list.size());
        const std::string name = list.substr(at, end - at);
        // Twice the same would be two vGPUs with one slot between them.
        const bool is_new = std::find(names.begin(), names.end(), name) == names.end();
        if (!name.empty() && is_new) names.push_back(name);
        at = end + 1;
    }
    return names;
}

Result<std::unique_ptr<Vgpu>> attach_one(const std::string& name) {
    Error last{Errc::kDaemon, 0, "find fabricd"};
    for (const auto& socket : sockets()) {
        auto attached = Vgpu::attach(name, socket);
        if (attached.ok()) return attached;
        last = attached.error();
        // No daemon there: the next place. Any other answer is the daemon's own; kNotFound comes
        // from both, and the step says which: no such socket, or no such vGPU.
        const bool is_absent = last.code == Errc::kDaemon || last.code == Errc::kNotFound;
        if (!is_absent || std::strcmp(last.step, "ask for a vGPU") == 0) break;
    }
    return last;
}

// As NVML and nvidia-smi write it, and so the configuration, without what is before it: "GPU-", or
// "MIG-" for a slice of a GPU in MIG mode. The driver reports of a slice these bytes, and not that
// it is one.
std::string text_of(const Uuid& uuid) {
    std::string text;
    for (int i = 0; i < 16; ++i) {
        char pair[3];
        std::snprintf(pair, sizeof pair, "%02x", uuid.bytes[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += pair;
    }
    return text;
}

std::string without_kind(const std::string& name) {
    const bool has_kind = name.rfind("GPU-", 0) == 0 || name.rfind("MIG-", 0) == 0;
    return has_kind ? name.substr(4) : name;
}

bool is_same_gpu(const std::string& a, const std::string& b) {
    return !a.empty() && without_kind(a) == without_kind(b);
}

// Whether NVML's device of this name and number is the vGPU's.
bool is_gpu(const Vgpu& vgpu, const std::string& uuid, unsigned int index) {
    // A configured number is the device's in this process. NVML counts all GPUs of the host, also
    // those that CUDA_VISIBLE_DEVICES hides: there only the name decides.
    if (is_same_gpu(vgpu.gpu(), uuid)) return true;
    if (!vgpu.uuid().empty()) return is_same_gpu(vgpu.uuid(), uuid);
    return vgpu.gpu() == std::to_string(index);
}

// Whether the driver's device of these bytes and this number is the one that was configured.
bool is_device(const Vgpu& vgpu, const std::string& bytes, Device device) {
    if (vgpu.device() == device || vgpu.gpu() == std::to_string(device)) return true;
    if (bytes.empty()) return false;
    if (is_same_gpu(vgpu.gpu(), bytes)) return true;
    // "MIG-GPU-<GPU>/<instance>/<instance>", the names of before driver 470. NVML may know it by
    // its later name; else the GPU's own bytes have to do: no process sees two slices of a GPU.
    const std::string& old = vgpu.gpu();
    if (old.rfind("MIG-GPU-", 0) != 0) return false;
    return is_same_gpu(nvml_name_of(old), bytes) || old.substr(8, old.find('/') - 8) == bytes;
}

bool is_attached(const Process& own, const std::string& name) {
    return std::any_of(own.vgpus.begin(), own.vgpus.end(),
                       [&](const auto& vgpu) { return vgpu->name() == name; });
}

// With the lock held. Why one of the names can't be had, the first of them; "" when all are here.
std::string attach_all(Process& own) {
    const auto names = wanted_names();
    if (names.empty()) return "nothing is limited: FABRIC_VGPU names no vGPU";
    std::string missing;
    for (const auto& name : names) {
        if (name == "off") return is_limit_required() ? "FABRIC_VGPU is off" : missing;
        if (is_attached(own, name)) continue;
        auto attached = attach_one(name);
        if (attached.ok()) {
            own.vgpus.push_back(std::move(*attached));
            continue;
        }
        const std::string why = name + " is not limited: " + describe(attached.error());
        if (missing.empty()) missing = why;
        // Else there is one line when cuInit is refused.
        if (!is_limit_required()) say("%s", why.c_str());
    }
    return missing;
}

// On standard error whatever FABRIC_LOG says, unless it is off: the program does not start.
void say_refused(const std::string& why) {
    log(LogLevel::kError, "libfabricvgpu: cuInit is refused, as FABRIC_VGPU_REQUIRE asks: %s",
        why.c_str());
}

}  // namespace

bool is_limit_required() {
    // What is neither on nor off for certain is on: to run without limits is what must not happen.
    const std::string value = variable("FABRIC_VGPU_REQUIRE");
    return !value.empty() && value != "0";
}

void attach_vgpus() {
    Process& own = process();
    const std::lock_guard lock(own.mutex);
    // Once, also when it fails: what the process holds by the time a daemon is there was not
    // counted.
    if (std::exchange(own.attached, true)) return;
    own.missing = attach_all(own);
    if (wanted_names().empty() && !is_limit_required()) say("%s", own.missing.c_str());
}

bool attach_required() {
    Process& own = process();
    const std::lock_guard lock(own.mutex);
    // Again after a failure: the driver was not started then, and so the process holds nothing.
    if (!std::exchange(own.attached, true) || !own.missing.empty()) own.missing = attach_all(own);
    if (!own.missing.empty()) say_refused(own.missing);
    return own.missing.empty();
}

bool are_all_limited() {
    int count = 0;
    if (helpers().device_count == nullptr || helpers().device_count(&count) != kSuccess) count = 0;
    for (Device device = 0; device < count; ++device) {
        if (vgpu_of(device) != nullptr) continue;
        say_refused("device " + std::to_string(device) +
                    " is none of the vGPUs; name one for it in FABRIC_VGPU, or hide it with "
                    "CUDA_VISIBLE_DEVICES");
        return false;
    }
    return true;
}

void map_devices() {
    Process& own = process();
    const std::lock_guard lock(own.mutex);
    int count = 0;
    if (own.vgpus.empty() || helpers().device_count == nullptr ||
        helpers().device_count(&count) != kSuccess) {
        return;
    }
    for (Device device = 0; device < std::min(count, kDevicesMax); ++device) {
        // Without the device's name, of which old drivers have no function, only numbers match.
        Uuid uuid{};
        const bool known =
            helpers().device_uuid != nullptr && helpers().device_uuid(&uuid, device) == kSuccess;
        for (const auto& vgpu : own.vgpus) {
            const std::string bytes = known ? text_of(uuid) : "";
            if (!is_device(*vgpu, bytes, device)) continue;
            auto& place = own.of_device[static_cast<std::size_t>(device)];
            Vgpu* const first = place.load(std::memory_order_relaxed);
            if (first != nullptr) {
                // The same one at a later cuInit, or a second name for its GPU.
                if (first != vgpu.get() && !std::exchange(own.said_double, true)) {
                    say("%s counts for nothing: its GPU is that of %s", vgpu->name().c_str(),
                        first->name().c_str());
                }
                continue;
            }
            const char* kind = vgpu->gpu().rfind("MIG-", 0) == 0 ? "MIG-" : "GPU-";
            vgpu->set_device(device, known ? kind + bytes : "");
            // Release: a thread that finds it also finds it whole.
            place.store(vgpu.get(), std::memory_order_release);
            own.any.store(true, std::memory_order_release);
        }
    }
    if (!own.any.load(std::memory_order_relaxed) && !is_limit_required()) {
        say("%s is not limited: none of the %d devices is its GPU (%s)",
            own.vgpus.front()->name().c_str(), count, own.vgpus.front()->gpu().c_str());
    }
}

Vgpu* vgpu_of(Device device) noexcept {
    Process& own = process();
    if (device < 0 || device >= kDevicesMax) return nullptr;
    // Acquire, against the release in map_devices().
    return own.of_device[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

bool any_vgpu() noexcept {
    // Acquire as in vgpu_of(), which has its own: relaxed would do, and costs the same.
    return process().any.load(std::memory_order_acquire);
}

Vgpu* current_vgpu() noexcept {
    // A process without vGPUs pays this load for each call.
    if (!any_vgpu()) return nullptr;
    Device device = -1;
    const auto current = helpers().current_device;
    if (current == nullptr || current(&device) != kSuccess) return nullptr;
    return vgpu_of(device);
}

// Among all vGPUs, not those of devices: NVML is used before cuInit, and without it.
Vgpu* vgpu_of_gpu(const char* uuid, unsigned int index) noexcept {
    Process& own = process();
    const std::lock_guard lock(own.mutex);
    for (const auto& vgpu : own.vgpus) {
        if (is_gpu(*vgpu, uuid, index)) return vgpu.get();
    }
    return nullptr;
}

}  // namespace fabricshm::cuda

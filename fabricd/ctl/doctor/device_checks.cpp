#include "fabricd/ctl/doctor/device_checks.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace fabricd::doctor {

using fabricshm::format_bytes;

namespace {

constexpr const char* kDax = "/sys/bus/dax/devices";
constexpr const char* kPci = "/sys/bus/pci/devices";
constexpr const char* kService = "fabricd";  // the user of the unit

std::string octal(mode_t mode) {
    char text[8];
    std::snprintf(text, sizeof text, "%04o", mode & 07777U);
    return text;
}

/// Of a device with the driver that makes it a file.
Finding dax_file(const HostFacts& host, const std::string& name, const std::string& size) {
    const std::string path = "/dev/" + name;
    const auto owner = owner_of(host.files, path);
    if (!owner) {
        return {Grade::kWarning, size + " and no " + path,
                "sudo udevadm trigger --subsystem-match=dax"};
    }
    const std::string mode = size + ", mode " + octal(owner->mode);
    if ((owner->mode & (S_IROTH | S_IWOTH)) != 0) {
        return {Grade::kWarning, mode + ": any user of this host reaches all of its arenas",
                "sudo chmod o= " + path};
    }
    if (host.user.may_use(*owner)) return {Grade::kOk, mode};
    const bool is_pool = host.config.config.pool.backend == "dax";
    return {is_pool ? Grade::kWarning : Grade::kNote,
            mode + ", uid " + std::to_string(owner->uid) + ": user " +
                std::to_string(host.user.uid) + " may not use it",
            "sudo chown " + std::string(kService) + " " + path};
}

Finding dax_device(const HostFacts& host, const std::string& name) {
    const std::string folder = std::string(kDax) + "/" + name;
    const auto bytes = host.files.number(folder + "/size");
    const std::string size = name + ": " + (bytes ? format_bytes(*bytes) : "unknown size");
    const auto driver = host.files.link_name(folder + "/driver").value_or("");
    if (driver == "device_dax") return dax_file(host, name, size);
    if (driver == "kmem") {
        return {Grade::kOk, size + ", memory of a node (a pool of pool.backend numa)"};
    }
    // Not reconfigure-device, which loses what is on it.
    return {Grade::kNote, size + ", without a driver", "sudo daxctl enable-device " + name};
}

/// Display controllers and 3D controllers of NVIDIA.
std::size_t nvidia_devices(const HostFacts& host) {
    std::size_t count = 0;
    for (const auto& name : host.files.names(kPci)) {
        const std::string folder = std::string(kPci) + "/" + name;
        const bool is_nvidia = host.files.number(folder + "/vendor") == 0x10deU;
        const auto kind = host.files.number(folder + "/class").value_or(0) >> 16U;
        count += is_nvidia && kind == 3 ? 1 : 0;
    }
    return count;
}

/// "/dev/nvidia0" and on.
std::size_t nvidia_files(const HostFacts& host, bool usable_only) {
    std::size_t count = 0;
    for (const auto& name : host.files.names("/dev")) {
        const bool is_gpu = name.size() > 6 && name.rfind("nvidia", 0) == 0 &&
                            std::all_of(name.begin() + 6, name.end(),
                                        [](unsigned char c) { return std::isdigit(c) != 0; });
        if (!is_gpu) continue;
        const auto owner = owner_of(host.files, "/dev/" + name);
        count += !usable_only || (owner && host.user.may_use(*owner)) ? 1 : 0;
    }
    return count;
}

std::string several(std::size_t count, const char* noun) {
    return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

Finding dax_devices(const HostFacts& host) {
    const auto& pool = host.config.config.pool;
    for (const std::string& path : pool.devices()) {
        if (pool.backend != "dax" || host.files.exists(path)) continue;
        const char* const key = pool.dax_devices.empty() ? "pool.dax_device" : "pool.dax_devices";
        return {Grade::kProblem, path + " is not there (" + key + ")", "fabricctl discover"};
    }
    const auto names = host.files.names(kDax);
    if (names.empty()) {
        // Without a driver for them the folder is not there either.
        if (host.config.config.pool.backend != "dax") return {Grade::kOk, "none"};
        return {Grade::kProblem, "none, and pool.backend is dax", "fabricd --pool-backend=auto"};
    }
    Finding gravest = dax_device(host, names.front());
    for (const auto& name : names) {
        Finding finding = dax_device(host, name);
        if (finding.grade > gravest.grade) gravest = std::move(finding);
    }
    if (names.size() > 1) gravest.text += " (1 of " + several(names.size(), "device") + ")";
    return gravest;
}

Finding nvidia_driver(const HostFacts& host) {
    const std::size_t devices = nvidia_devices(host);
    const std::string version = host.files.text("/sys/module/nvidia/version").value_or("");
    if (version.empty()) {
        if (devices == 0) {
            return host.files.exists(kPci) ? Finding{Grade::kOk, "no NVIDIA GPU"}
                                           : unknown(std::string("can't read ") + kPci);
        }
        return {Grade::kWarning, several(devices, "NVIDIA GPU") + " and no driver",
                "sudo apt install nvidia-driver"};
    }
    const std::size_t files = nvidia_files(host, false);
    const std::string driver = "driver " + version + ", " + several(files, "GPU");
    if (files == 0) {
        return {Grade::kWarning, driver + ": no /dev/nvidia0", "sudo nvidia-modprobe -c 0 -u"};
    }
    const std::size_t usable = nvidia_files(host, true);
    if (usable < files) {
        return {Grade::kWarning, driver + ", of which this user may use " + std::to_string(usable),
                "ls -l /dev/nvidia*"};
    }
    if (!host.libcuda) return {Grade::kUnknown, driver + "; libcuda.so.1 was not tried"};
    if (host.libcuda->empty()) return {Grade::kOk, driver};
    return {Grade::kWarning, driver + ", and no libcuda.so.1: " + *host.libcuda,
            "sudo apt install libcuda1"};
}

}  // namespace fabricd::doctor

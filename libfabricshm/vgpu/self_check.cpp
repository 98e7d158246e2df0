#include "libfabricshm/vgpu/self_check.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

// A function with one of these in its name may take memory of the device or use its processors, or
// report how much there is. By parts of names, so that forms and whole functions of later drivers
// are found; what a later driver calls differently is not.
constexpr const char* kTelling[] = {
    "MemAlloc",
    "MemCreate",
    "ArrayCreate",
    "MemImport",
    "MemPoolImport",
    "IpcOpenMem",
    "ImportExternalMemory",
    "CtxCreate",
    "PrimaryCtxRetain",
    "ModuleLoad",
    "LibraryLoad",
    "cuLaunch",
    "GraphLaunch",
    "GraphInstantiate",
    "GraphExecUpdate",
    "MemGetInfo",
    "DeviceTotalMem",
    "GetProcAddress",
    "MemFree",
    "MemRelease",
    "MemMap",
    "MemUnmap",
    "AddMemAllocNode",
    "GraphAddNode",
    "MulticastCreate",
    "MemPoolTrim",
    "RetainAllocation",
};

// Examined: memory of the host, sizes without memory, functions of the host, memory that is charged
// where it was made, and code that a charged context brought. Beginnings of names, so that their
// later forms are let pass as well.
constexpr const char* kHarmless[] = {
    "cuMemAllocHost",
    "cuMemFreeHost",
    "cuLaunchHostFunc",
    "cuMemMapArrayAsync",  // maps memory of cuMemCreate into a sparse array
    "cuMulticastCreate",   // an object over memory of cuMemCreate
    "cuGreenCtxCreate",    // a part of the primary context
    "cuGraphAddMemFreeNode",
    "cuGraphMemAllocNodeGetParams",
    "cuGraphMemFreeNodeGetParams",
    "cuMemGetAllocation",  // properties and granularity
};

bool begins_with(const std::string& text, const char* head) {
    return text.rfind(head, 0) == 0;
}

}  // namespace

std::vector<std::string> uncovered(const std::vector<std::string>& exports) {
    std::vector<std::string> found;
    for (const std::string& name : exports) {
        const bool is_telling =
            begins_with(name, "cu") &&
            std::any_of(std::begin(kTelling), std::end(kTelling),
                        [&](const char* part) { return name.find(part) != std::string::npos; });
        const bool is_harmless =
            std::any_of(std::begin(kHarmless), std::end(kHarmless),
                        [&](const char* head) { return begins_with(name, head); });
        if (is_telling && !is_harmless && find_entry(name.c_str()) == nullptr) {
            found.push_back(name);
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

void check_once_if_asked() {
    static std::once_flag once;
    std::call_once(once, [] {
        const char* wanted = std::getenv("FABRIC_VGPU_CHECK");
        if (wanted == nullptr || std::strcmp(wanted, "1") != 0) return;
        const auto exports = driver_exports();
        const auto missing = uncovered(exports);
        for (const auto& name : missing) say("not covered: %s", name.c_str());
        say("the driver exports %zu functions, %zu of concern are not covered", exports.size(),
            missing.size());
    });
}

}  // namespace fabricshm::cuda

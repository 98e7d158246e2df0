// Mock driver: cuGetProcAddress, by name, version and flavour, as the real one's documentation has
// it.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/mock_gpu/device.hpp"
#include "tests/support/mock_gpu/driver.hpp"

using namespace mock_gpu;

#define MOCK_PROCS(X)                                              \
    X(cuInit, "cuInit", 2000, 0)                                   \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, 0)           \
    X(cuGetExportTable, "cuGetExportTable", 3000, 0)               \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, 0)               \
    X(cuDeviceGet, "cuDeviceGet", 2000, 0)                         \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, 0)                 \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, 0)       \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, 0)                 \
    X(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040, 0)             \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 0)            \
    X(cuModuleGetLoadingMode, "cuModuleGetLoadingMode", 11070, 0)  \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, 0)                        \
    X(cuMemFree_v2, "cuMemFree", 3020, 0)                          \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0)                    \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0)                \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 2)           \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0)                  \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, 0)                   \
    X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, 2)              \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiate", 12000, 0) \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, 0)

#define DECLARE(function, base, since, flags) extern "C" void function();
namespace procs {
MOCK_PROCS(DECLARE)
}

MOCK_EXPORT Status cuGetProcAddress(const char*, void**, int, std::uint64_t);
MOCK_EXPORT Status cuGetProcAddress_v2(const char*, void**, int, std::uint64_t, int*);

namespace {

struct Proc {
    const char* base;
    int since;
    std::uint64_t flags;
    void* address;
};

// One whose address no symbol resolves to: as far as is known, the real driver may answer with
// such.
Status nameless_managed(Pointer* out, std::size_t bytes, unsigned int) {
    using Allocate = Status (*)(Pointer*, std::size_t);
    return reinterpret_cast<Allocate>(&procs::cuMemAlloc_v2)(out, bytes);
}

void* find(const char* name, int version, std::uint64_t flags) {
#define LINE(function, base, since, flags) \
    {base, since, flags, reinterpret_cast<void*>(&procs::function)},
    static const Proc kProcs[] = {
        MOCK_PROCS(LINE){"cuGetProcAddress", 11030, 0, reinterpret_cast<void*>(&cuGetProcAddress)},
        {"cuGetProcAddress", 12000, 0, reinterpret_cast<void*>(&cuGetProcAddress_v2)},
        {"cuMemAllocManaged", 6000, 0, reinterpret_cast<void*>(&nameless_managed)}};
    const Proc* best = nullptr;
    for (const Proc& proc : kProcs) {
        const bool fits = std::strcmp(proc.base, name) == 0 && proc.since <= version &&
                          (proc.flags == 0 || proc.flags == flags);
        if (fits && (best == nullptr || proc.since >= best->since)) best = &proc;
    }
    return best != nullptr ? best->address : nullptr;
}

// $FABRIC_MOCK_ASKED names a file for what was asked and by which library: a test sees there
// whether a call got past the shim.
void note(const char* name, int version, std::uint64_t flags, void* caller) {
    static const char* const path = std::getenv("FABRIC_MOCK_ASKED");
    if (path == nullptr) return;
    Dl_info from{};
    const bool is_known = ::dladdr(caller, &from) != 0;
    const char* slash = is_known ? std::strrchr(from.dli_fname, '/') : nullptr;
    std::FILE* file = std::fopen(path, "a");
    if (file == nullptr) return;
    std::fprintf(file, "%s:%d:%d %s\n", name, version, static_cast<int>(flags),
                 slash != nullptr ? slash + 1 : "unnamed");
    std::fclose(file);
}

}  // namespace

MOCK_EXPORT Status cuGetProcAddress_v2(const char* name, void** out, int version,
                                       std::uint64_t flags, int* found) {
    note(name, version, flags, __builtin_return_address(0));
    *out = find(name, version, flags);
    if (found != nullptr) *found = *out != nullptr ? 0 : 1;
    return *out != nullptr ? kSuccess : kNotFound;
}
MOCK_EXPORT Status cuGetProcAddress(const char* name, void** out, int version,
                                    std::uint64_t flags) {
    note(name, version, flags, __builtin_return_address(0));
    *out = find(name, version, flags);
    return *out != nullptr ? kSuccess : kNotFound;
}

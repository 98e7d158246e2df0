// A program that uses the CUDA driver and knows nothing of a quota. It reads commands from standard
// input and answers each with one line; tests steer it so. `ok`, `ok NUMBER...` or the error's
// number.

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/mock_gpu/driver_calls.hpp"
#include "tests/support/mock_gpu/player_loads.hpp"

using namespace fabricshm::cuda;
using namespace gpu_player;

namespace {

constexpr std::size_t kMiB = 1 << 20;

Handle g_context = nullptr;
std::vector<std::uint64_t> g_things;  // by the number that a command's answer gave
std::vector<std::uint64_t> g_sizes;

std::string answer(Status status) {
    return status == kSuccess ? "ok" : std::to_string(status);
}

// Remembers a thing; the answer has its number.
std::string made(Status status, std::uint64_t thing, std::uint64_t size = 0) {
    if (status != kSuccess) return answer(status);
    g_things.push_back(thing);
    g_sizes.push_back(size);
    return "ok " + std::to_string(g_things.size() - 1);
}

std::uint64_t key(Handle handle) {
    return reinterpret_cast<std::uint64_t>(handle);
}

Handle handle_of(const Words& words) {
    return reinterpret_cast<Handle>(g_things.at(number(words, 1)));
}

std::string allocate(const Words& words) {
    Pointer out = 0;
    const Status status = cuMemAlloc_v2(&out, number(words, 1));
    return made(status, out);
}

// The way of the CUDA runtime: everything by dlsym and cuGetProcAddress.
std::string allocate_by_address(const Words& words) {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
    using Find = Status (*)(const char*, void**, int, std::uint64_t, int*);
    const auto find = reinterpret_cast<Find>(::dlsym(library, "cuGetProcAddress_v2"));
    void* function = nullptr;
    const std::string name = words.at(2);
    const Status found = find(name.c_str(), &function, 12000, number(words, 3), nullptr);
    if (found != kSuccess) return answer(found);
    Pointer out = 0;
    Status status = kInvalidValue;
    if (name == "cuMemAlloc") {
        status =
            reinterpret_cast<Status (*)(Pointer*, std::size_t)>(function)(&out, number(words, 1));
    } else if (name == "cuMemAllocManaged") {
        status = reinterpret_cast<Status (*)(Pointer*, std::size_t, unsigned int)>(function)(
            &out, number(words, 1), 1);
    } else if (name == "cuMemAllocAsync") {
        status = reinterpret_cast<Status (*)(Pointer*, std::size_t, Handle)>(function)(
            &out, number(words, 1), nullptr);
    }
    return made(status, out);
}

std::string allocate_by_dlsym(const Words& words) {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
    using Allocate = Status (*)(Pointer*, std::size_t);
    const auto own = reinterpret_cast<Allocate>(::dlsym(library, "cuMemAlloc_v2"));
    Pointer out = 0;
    const Status status = own(&out, number(words, 1));
    return made(status, out);
}

std::string memory_info(const Words&) {
    std::size_t free = 0;
    std::size_t total = 0;
    std::size_t device = 0;
    Status status = cuMemGetInfo_v2(&free, &total);
    if (status == kSuccess) status = cuDeviceTotalMem_v2(&device, 0);
    if (status != kSuccess) return answer(status);
    return "ok " + std::to_string(free) + " " + std::to_string(total) + " " +
           std::to_string(device);
}

std::string nvml_info(const Words& words) {
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) return "none";
    const auto by_index = reinterpret_cast<Status (*)(unsigned int, Handle*)>(
        ::dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
    const auto memory = reinterpret_cast<Status (*)(Handle, NvmlMemory*)>(
        ::dlsym(library, "nvmlDeviceGetMemoryInfo"));
    const auto processes = reinterpret_cast<Status (*)(Handle, unsigned int*, NvmlProcess2*)>(
        ::dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
    Handle device = nullptr;
    NvmlMemory all{};
    std::vector<NvmlProcess2> list(256);
    unsigned int count = 256;
    Status status = by_index(static_cast<unsigned int>(number(words, 1)), &device);
    if (status == 0) status = memory(device, &all);
    if (status == 0) status = processes(device, &count, list.data());
    if (status != 0) return answer(status);
    std::uint64_t sum = 0;
    for (unsigned int i = 0; i < count; ++i) sum += list[i].used;
    return "ok " + std::to_string(all.free) + " " + std::to_string(all.total) + " " +
           std::to_string(count) + " " + std::to_string(sum);
}

std::string create_memory(const Words& words) {
    AllocationProp prop{};
    prop.location.type = words.size() > 2 && words[2] == "host" ? 2 : kOnDevice;
    AllocationHandle out = 0;
    const Status status = cuMemCreate(&out, number(words, 1), &prop, 0);
    return made(status, out, number(words, 1));
}

std::string map_memory(const Words& words) {
    static Pointer next = 0x600000000000;
    const std::uint64_t bytes = words.size() > 2 ? number(words, 2) : g_sizes.at(number(words, 1));
    const Pointer at = next;
    next += bytes;
    return made(cuMemMap(at, bytes, 0, g_things.at(number(words, 1)), 0), at, bytes);
}

std::string retain_memory(const Words& words) {
    AllocationHandle out = 0;
    const Status status =
        cuMemRetainAllocationHandle(&out, reinterpret_cast<void*>(g_things.at(number(words, 1))));
    return made(status, out);
}

std::string import_memory(std::uint64_t shareable) {
    AllocationHandle out = 0;
    const Status status =
        cuMemImportFromShareableHandle(&out, reinterpret_cast<void*>(shareable), 1);
    return made(status, out);
}

std::string open_pooled(const Words& words) {
    std::uint64_t data[8] = {number(words, 1)};
    Pointer out = 0;
    const Status status = cuMemPoolImportPointer(&out, nullptr, data);
    return made(status, out);
}

std::string graph_of(const Words& words) {
    // Captured from a stream: so many bytes, one kernel of so many threads.
    const auto stream = reinterpret_cast<Handle>(0x52);
    cuStreamBeginCapture_v2(stream, 0);
    Pointer out = 0;
    if (number(words, 1) > 0 && cuMemAllocAsync(&out, number(words, 1), stream) != kSuccess) {
        return "captured allocation refused";
    }
    cuLaunchKernel(nullptr, static_cast<unsigned int>(number(words, 2)), 1, 1, 1, 1, 1, 0, stream,
                   nullptr, nullptr);
    Handle graph = nullptr;
    cuStreamEndCapture(stream, &graph);
    Handle executable = nullptr;
    const Status status = cuGraphInstantiateWithFlags(&executable, graph, 0);
    return made(status, key(executable));
}

// The same from the thread's own default stream.
std::string graph_of_own(const Words& words) {
    cuStreamBeginCapture_v2_ptsz(nullptr, 0);
    Pointer out = 0;
    const Status captured = cuMemAllocAsync_ptsz(&out, number(words, 1), nullptr);
    cuLaunchKernel_ptsz(nullptr, static_cast<unsigned int>(number(words, 2)), 1, 1, 1, 1, 1, 0,
                        nullptr, nullptr, nullptr);
    Handle graph = nullptr;
    cuStreamEndCapture_ptsz(nullptr, &graph);
    if (captured != kSuccess) return "captured allocation refused";
    Handle executable = nullptr;
    const Status status = cuGraphInstantiateWithFlags(&executable, graph, 0);
    return made(status, key(executable));
}

std::string launch(const Words& words) {
    Status status = kSuccess;
    for (std::uint64_t i = 0;
         status == kSuccess && i < std::max<std::uint64_t>(1, number(words, 2)); ++i) {
        status = cuLaunchKernel(nullptr, static_cast<unsigned int>(number(words, 1)), 1, 1, 1, 1, 1,
                                0, nullptr, nullptr, nullptr);
    }
    return answer(status);
}

// What another thread does, which end_aside() waits for.
std::thread g_aside;
Status g_aside_status = kSuccess;

template <typename Call>
std::string aside(Call call) {
    g_aside = std::thread([call] {
        g_aside_status = cuCtxSetCurrent(g_context);
        if (g_aside_status == kSuccess) g_aside_status = call();
    });
    return "ok";
}

std::string launch_aside(const Words&) {
    return aside(
        [] { return cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); });
}

std::string end_pool_aside(const Words& words) {
    return aside([pool = handle_of(words)] { return cuMemPoolDestroy(pool); });
}

std::string allocate_aside(const Words& words) {
    return aside([bytes = number(words, 1)] {
        Pointer out = 0;
        return cuMemAlloc_v2(&out, bytes);
    });
}

std::string map_aside(const Words& words) {
    return aside([handle = g_things.at(number(words, 1)), bytes = number(words, 2)] {
        return cuMemMap(0x500000000000, bytes, 0, handle, 0);
    });
}

std::string retain_aside(const Words&) {
    return aside([] {
        Handle context = nullptr;
        return cuDevicePrimaryCtxRetain(&context, 0);
    });
}

const auto kCaptured = reinterpret_cast<Handle>(0x51);

std::string end_capture(const Words&) {
    Handle graph = nullptr;
    return answer(cuStreamEndCapture(kCaptured, &graph));
}

std::string end_aside(const Words&) {
    g_aside.join();
    return answer(g_aside_status);
}

std::string create_pool(const Words& words) {
    PoolProps wanted{};
    wanted.location.type = words.at(1) == "host" ? 2 : kOnDevice;
    Handle pool = nullptr;
    const Status status = cuMemPoolCreate(&pool, &wanted);
    return made(status, key(pool));
}

// What was written to standard error, in one line.
std::string said(const Words&) {
    std::ifstream file(std::getenv("FABRIC_PLAYER_LOG"));
    std::string all;
    for (std::string line; std::getline(file, line);) all += line + " ";
    return all;
}

using Commands = std::map<std::string, std::function<std::string(const Words&)>>;

// Code as the CUDA 10.1 runtime loads it: by slot 6 of a table, see tables.cpp.
std::string hidden_module(const Words&) {
    const Uuid runtime = {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39,
                           0x12, 0xfd, 0x9d, 0xf9}};
    const void* table = nullptr;
    const Status status = cuGetExportTable(&table, &runtime);
    if (status != kSuccess) return answer(status);
    Handle out = nullptr;
    using Load = Status (*)(Handle*, const void*);
    return answer(reinterpret_cast<Load>(static_cast<void* const*>(table)[6])(&out, nullptr));
}

const Commands& plain_commands() {
    static const Commands all = {
        {"init", [](const Words&) { return answer(cuInit(0)); }},
        {"context",
         [](const Words& words) {
             return answer(cuCtxCreate_v2(&g_context, 0, static_cast<Device>(number(words, 1))));
         }},
        {"end-context", [](const Words&) { return answer(cuCtxDestroy_v2(g_context)); }},
        {"retain-primary",
         [](const Words&) {
             const Status status = cuDevicePrimaryCtxRetain(&g_context, 0);
             return answer(status == kSuccess ? cuCtxSetCurrent(g_context) : status);
         }},
        {"release-primary", [](const Words&) { return answer(cuDevicePrimaryCtxRelease_v2(0)); }},
        {"alloc", allocate},
        {"alloc-by-address", allocate_by_address},
        {"alloc-by-dlsym", allocate_by_dlsym},
        {"managed",
         [](const Words& words) {
             Pointer out = 0;
             const Status status = cuMemAllocManaged(&out, number(words, 1), 1);
             return made(status, out);
         }},
        {"pitch",
         [](const Words& words) {
             Pointer out = 0;
             std::size_t pitch = 0;
             const Status status =
                 cuMemAllocPitch_v2(&out, &pitch, number(words, 1), number(words, 2), 4);
             return made(status, out);
         }},
        {"free",
         [](const Words& words) { return answer(cuMemFree_v2(g_things.at(number(words, 1)))); }},
        {"async",
         [](const Words& words) {
             Pointer out = 0;
             const Status status = cuMemAllocAsync(&out, number(words, 1), nullptr);
             return made(status, out);
         }},
        {"pool", create_pool},
        {"default-pool",
         [](const Words&) {
             Handle pool = nullptr;
             const Status status = cuDeviceGetDefaultMemPool(&pool, 0);
             return made(status, key(pool));
         }},
        {"end-pool", [](const Words& words) { return answer(cuMemPoolDestroy(handle_of(words))); }},
        {"end-pool-aside", end_pool_aside},
        {"async-from",
         [](const Words& words) {
             Pointer out = 0;
             const Status status =
                 cuMemAllocFromPoolAsync(&out, number(words, 2), handle_of(words), nullptr);
             return made(status, out);
         }},
        {"free-async",
         [](const Words& words) {
             return answer(cuMemFreeAsync(g_things.at(number(words, 1)), nullptr));
         }},
    };
    return all;
}

const Commands& other_commands() {
    static const Commands all = {
        {"create", create_memory},
        {"map", map_memory},
        {"unmap",
         [](const Words& words) {
             const auto at = number(words, 1);
             return answer(cuMemUnmap(g_things.at(at), g_sizes.at(at)));
         }},
        {"release",
         [](const Words& words) { return answer(cuMemRelease(g_things.at(number(words, 1)))); }},
        {"retain", retain_memory},
        {"import", [](const Words& words) { return import_memory(number(words, 1)); }},
        {"import-own",
         [](const Words& words) { return import_memory(g_things.at(number(words, 1))); }},
        {"array",
         [](const Words& words) {
             const ArrayDescriptor wanted{number(words, 1), number(words, 2), 0x20, 1};
             Handle out = nullptr;
             const Status status = cuArrayCreate_v2(&out, &wanted);
             return made(status, key(out));
         }},
        {"end-array", [](const Words& words) { return answer(cuArrayDestroy(handle_of(words))); }},
        {"mipmap",
         [](const Words& words) {
             // Side, levels, and for one with layers or faces their number and the flags.
             const Array3dDescriptor wanted{number(words, 1),
                                            number(words, 1),
                                            number(words, 3),
                                            0x20,
                                            4,
                                            static_cast<unsigned int>(number(words, 4))};
             Handle out = nullptr;
             const Status status =
                 cuMipmappedArrayCreate(&out, &wanted, static_cast<unsigned int>(number(words, 2)));
             return made(status, key(out));
         }},
        {"end-mipmap",
         [](const Words& words) { return answer(cuMipmappedArrayDestroy(handle_of(words))); }},
        {"external",
         [](const Words& words) {
             ExternalMemory wanted{};
             wanted.bytes = number(words, 1);
             Handle out = nullptr;
             const Status status = cuImportExternalMemory(&out, &wanted);
             return made(status, key(out));
         }},
        {"end-external",
         [](const Words& words) { return answer(cuDestroyExternalMemory(handle_of(words))); }},
        {"open",
         [](const Words& words) {
             IpcHandle handle{};
             const std::uint64_t bytes = number(words, 1);
             std::memcpy(handle.bytes, &bytes, sizeof bytes);
             Pointer out = 0;
             const Status status = cuIpcOpenMemHandle_v2(&out, handle, 0);
             return made(status, out);
         }},
        {"open-pooled", open_pooled},
        {"close",
         [](const Words& words) {
             return answer(cuIpcCloseMemHandle(g_things.at(number(words, 1))));
         }},
        {"module",
         [](const Words&) {
             Handle out = nullptr;
             return answer(cuModuleLoadData(&out, nullptr));
         }},
        {"hidden-module", hidden_module},
        {"limit",
         [](const Words& words) {
             return answer(cuCtxSetLimit(static_cast<int>(number(words, 1)), number(words, 2)));
         }},
        {"info", memory_info},
        {"nvml", nvml_info},
        {"graph", graph_of},
        {"graph-of-own", graph_of_own},
        {"race-primary", race_primary},
        {"launch-graph",
         [](const Words& words) { return answer(cuGraphLaunch(handle_of(words), nullptr)); }},
        {"end-graph",
         [](const Words& words) { return answer(cuGraphExecDestroy(handle_of(words))); }},
        {"launch", launch},
        {"launch-aside", launch_aside},
        {"alloc-aside", allocate_aside},
        {"map-aside", map_aside},
        {"retain-aside", retain_aside},
        {"begin-capture",
         [](const Words&) { return answer(cuStreamBeginCapture_v2(kCaptured, 0)); }},
        {"end-capture", end_capture},
        {"end-aside", end_aside},
        {"said", said},
        {"time", time_calls},
        {"launch-for", launch_for},
        {"race", race},
    };
    return all;
}

}  // namespace

int main() {
    const char* log = std::getenv("FABRIC_PLAYER_LOG");
    if (log != nullptr && std::freopen(log, "w", stderr) == nullptr) return 1;
    std::setvbuf(stderr, nullptr, _IONBF, 0);
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream text(line);
        Words words;
        for (std::string word; text >> word;) words.push_back(word);
        if (words.empty()) continue;
        const bool is_plain = plain_commands().count(words[0]) > 0;
        const Commands& commands = is_plain ? plain_commands() : other_commands();
        const auto found = commands.find(words[0]);
        std::cout << (found != commands.end() ? found->second(words) : "no such command")
                  << std::endl;
    }
    return 0;
}

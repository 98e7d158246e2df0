// The table of the shim: one line for each entry point of the driver that it stands in for. The
// symbol, the definition, the way to the real one and the answer to cuGetProcAddress are all made
// from its line.
//
//   X(symbol, base name, since, flavour, handler, (parameters), (arguments))
//
// since: the CUDA version (1000 * major + 10 * minor) from which cuGetProcAddress means this form.
// flavour: kBoth where there is one form for both kinds of default stream, else kLegacy or
// kPerThread. handler: a function of the hooks_*.cpp that expands the group; it gets the real one
// and the arguments.
//
// A form is in the table as soon as one driver has it: programs ask by name, and what was compiled
// ten years ago asks for the names of then. Parameters are those of that very form; a pointer to
// something that is not read here may be void*, but nothing may change its size or its place among
// the registers. The order of the lines means nothing; their number is the index of an Entry.

#pragma once

// Nothing here allocates by name, and all of it takes memory of which only the driver knows how
// much. Not here: what ends code (cuModuleUnload, cuLibraryUnload), since what is charged for it
// goes with the process; green contexts, which are parts of the primary one; and cuCtxDetach of
// before CUDA 4: a context that ends by it stays charged until the process ends.

#define FABRIC_CONTEXT_ENTRIES(X)                                                               \
    X(cuInit, "cuInit", 2000, kBoth, init, (unsigned int a), (a))                               \
    X(cuCtxCreate, "cuCtxCreate", 2000, kBoth, create_context_1,                                \
      (Handle * a, unsigned int b, Device c), (a, b, c))                                        \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, kBoth, create_context_1,                             \
      (Handle * a, unsigned int b, Device c), (a, b, c))                                        \
    X(cuCtxCreate_v3, "cuCtxCreate", 11040, kBoth, create_context_3,                            \
      (Handle * a, void* b, int c, unsigned int d, Device e), (a, b, c, d, e))                  \
    X(cuCtxCreate_v4, "cuCtxCreate", 12050, kBoth, create_context_4,                            \
      (Handle * a, void* b, unsigned int c, Device d), (a, b, c, d))                            \
    X(cuCtxDestroy, "cuCtxDestroy", 2000, kBoth, destroy_context, (Handle a), (a))              \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, kBoth, destroy_context, (Handle a), (a))           \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, kBoth, retain_primary,        \
      (Handle * a, Device b), (a, b))                                                           \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, kBoth, release_primary,     \
      (Device a), (a))                                                                          \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, kBoth, release_primary, \
      (Device a), (a))                                                                          \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, kBoth, release_primary,         \
      (Device a), (a))                                                                          \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, kBoth, release_primary,     \
      (Device a), (a))                                                                          \
    X(cuCtxSetLimit, "cuCtxSetLimit", 3010, kBoth, set_limit, (int a, std::size_t b), (a, b))   \
    X(cuModuleLoad, "cuModuleLoad", 2000, kBoth, load_module_2, (Handle * a, const void* b),    \
      (a, b))                                                                                   \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, kBoth, load_module_2,                         \
      (Handle * a, const void* b), (a, b))                                                      \
    X(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000, kBoth, load_module_2,               \
      (Handle * a, const void* b), (a, b))                                                      \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010, kBoth, load_module_5,                     \
      (Handle * a, const void* b, unsigned int c, int* d, void** e), (a, b, c, d, e))           \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000, kBoth, load_library,                       \
      (Handle * a, const void* b, int* c, void** d, unsigned int e, int* f, void** g,           \
       unsigned int h),                                                                         \
      (a, b, c, d, e, f, g, h))                                                                 \
    X(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000, kBoth, load_library,               \
      (Handle * a, const void* b, int* c, void** d, unsigned int e, int* f, void** g,           \
       unsigned int h),                                                                         \
      (a, b, c, d, e, f, g, h))

// Memory with an address or a handle of its own. Not here: memory of the host (cuMemHostAlloc,
// cuMemAllocHost), and buffers of imported memory (cuExternalMemoryGetMappedBuffer): they are parts
// of what cuImportExternalMemory was charged for, so that a cuMemFree of theirs finds nothing in
// the tables.
#define FABRIC_MEMORY_ENTRIES(X)                                                                   \
    X(cuMemAlloc, "cuMemAlloc", 2000, kBoth, allocate_32, (unsigned int* a, unsigned int b),       \
      (a, b))                                                                                      \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, kBoth, allocate, (Pointer * a, std::size_t b), (a, b))    \
    X(cuMemAllocPitch, "cuMemAllocPitch", 2000, kBoth, allocate_pitch_32,                          \
      (unsigned int* a, unsigned int* b, unsigned int c, unsigned int d, unsigned int e),          \
      (a, b, c, d, e))                                                                             \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, kBoth, allocate_pitch,                          \
      (Pointer * a, std::size_t * b, std::size_t c, std::size_t d, unsigned int e),                \
      (a, b, c, d, e))                                                                             \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, kBoth, allocate_managed,                       \
      (Pointer * a, std::size_t b, unsigned int c), (a, b, c))                                     \
    X(cuMemFree, "cuMemFree", 2000, kBoth, free_32, (unsigned int a), (a))                         \
    X(cuMemFree_v2, "cuMemFree", 3020, kBoth, free_pointer, (Pointer a), (a))                      \
    X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, kBoth, open_ipc,                             \
      (Pointer * a, IpcHandle b, unsigned int c), (a, b, c))                                       \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, kBoth, open_ipc,                         \
      (Pointer * a, IpcHandle b, unsigned int c), (a, b, c))                                       \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, kBoth, free_pointer, (Pointer a), (a))     \
    X(cuImportExternalMemory, "cuImportExternalMemory", 10000, kBoth, import_external,             \
      (Handle * a, const ExternalMemory* b), (a, b))                                               \
    X(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000, kBoth, destroy_handle,            \
      (Handle a), (a))                                                                             \
    X(cuArrayCreate, "cuArrayCreate", 2000, kBoth, create_array_32, (Handle * a, const void* b),   \
      (a, b))                                                                                      \
    X(cuArrayCreate_v2, "cuArrayCreate", 3020, kBoth, create_array,                                \
      (Handle * a, const ArrayDescriptor* b), (a, b))                                              \
    X(cuArray3DCreate, "cuArray3DCreate", 2000, kBoth, create_array_3d_32,                         \
      (Handle * a, const void* b), (a, b))                                                         \
    X(cuArray3DCreate_v2, "cuArray3DCreate", 3020, kBoth, create_array_3d,                         \
      (Handle * a, const Array3dDescriptor* b), (a, b))                                            \
    X(cuArrayDestroy, "cuArrayDestroy", 2000, kBoth, destroy_handle, (Handle a), (a))              \
    X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, kBoth, create_mipmap,                \
      (Handle * a, const Array3dDescriptor* b, unsigned int c), (a, b, c))                         \
    X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, kBoth, destroy_handle, (Handle a), \
      (a))

// Physical memory and its mappings. Not here: reserved addresses and access rights, which take
// nothing of the device, and multicast objects, which are made over memory of cuMemCreate.
#define FABRIC_MAPPED_ENTRIES(X)                                                                \
    X(cuMemCreate, "cuMemCreate", 10020, kBoth, create_memory,                                  \
      (AllocationHandle * a, std::size_t b, const AllocationProp* c, unsigned long long d),     \
      (a, b, c, d))                                                                             \
    X(cuMemRelease, "cuMemRelease", 10020, kBoth, release_memory, (AllocationHandle a), (a))    \
    X(cuMemMap, "cuMemMap", 10020, kBoth, map_memory,                                           \
      (Pointer a, std::size_t b, std::size_t c, AllocationHandle d, unsigned long long e),      \
      (a, b, c, d, e))                                                                          \
    X(cuMemUnmap, "cuMemUnmap", 10020, kBoth, unmap_memory, (Pointer a, std::size_t b), (a, b)) \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, kBoth,           \
      import_memory, (AllocationHandle * a, void* b, int c), (a, b, c))                         \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, kBoth, retain_memory,  \
      (AllocationHandle * a, void* b), (a, b))

// All that makes a pool grow or shrink, but what it does by itself when a stream is waited for:
// that is seen with the next call of this group. cuMemPoolSetAttribute is one of them because a
// lower threshold may free at once.
#define FABRIC_POOL_ENTRIES(X)                                                                     \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, kLegacy, allocate_async,                          \
      (Pointer * a, std::size_t b, Handle c), (a, b, c))                                           \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, kPerThread, allocate_async,                  \
      (Pointer * a, std::size_t b, Handle c), (a, b, c))                                           \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, kLegacy, allocate_from_pool,      \
      (Pointer * a, std::size_t b, Handle c, Handle d), (a, b, c, d))                              \
    X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, kPerThread,                  \
      allocate_from_pool, (Pointer * a, std::size_t b, Handle c, Handle d), (a, b, c, d))          \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, kLegacy, free_async, (Pointer a, Handle b), (a, b)) \
    X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, kPerThread, free_async, (Pointer a, Handle b), \
      (a, b))                                                                                      \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, kBoth, create_pool,                               \
      (Handle * a, const PoolProps* b), (a, b))                                                    \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, kBoth, destroy_pool, (Handle a), (a))           \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, kBoth, set_pool_attribute,            \
      (Handle a, int b, void* c), (a, b, c))                                                       \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, kBoth, trim_pool, (Handle a, std::size_t b),      \
      (a, b))                                                                                      \
    X(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020, kBoth,      \
      import_pool, (Handle * a, void* b, int c, unsigned long long d), (a, b, c, d))               \
    X(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, kBoth, import_pool_pointer,         \
      (Pointer * a, Handle b, void* c), (a, b, c))

// Nodes that allocate, what makes a graph one that can be launched, and launches. Kernel nodes need
// no line: they are examined when the graph is instantiated. Not here: a node's parameters changed
// in an executable graph (cuGraphExecKernelNodeSetParams): the graph goes on costing what it did.
#define FABRIC_GRAPH_ENTRIES(X)                                                                    \
    X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040, kBoth, add_alloc_node,              \
      (Handle * a, Handle b, const Handle* c, std::size_t d, MemAllocNode* e), (a, b, c, d, e))    \
    X(cuGraphAddNode, "cuGraphAddNode", 12020, kBoth, add_node_1,                                  \
      (Handle * a, Handle b, const Handle* c, std::size_t d, NodeParams* e), (a, b, c, d, e))      \
    X(cuGraphAddNode_v2, "cuGraphAddNode", 12030, kBoth, add_node_2,                               \
      (Handle * a, Handle b, const Handle* c, const void* d, std::size_t e, NodeParams* f),        \
      (a, b, c, d, e, f))                                                                          \
    X(cuGraphInstantiate, "cuGraphInstantiate", 10000, kBoth, instantiate_1,                       \
      (Handle * a, Handle b, Handle * c, char* d, std::size_t e), (a, b, c, d, e))                 \
    X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, kBoth, instantiate_1,                    \
      (Handle * a, Handle b, Handle * c, char* d, std::size_t e), (a, b, c, d, e))                 \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, kBoth, instantiate_flags, \
      (Handle * a, Handle b, unsigned long long c), (a, b, c))                                     \
    X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000, kLegacy,                \
      instantiate_params, (Handle * a, Handle b, void* c), (a, b, c))                              \
    X(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000, kPerThread,        \
      instantiate_params, (Handle * a, Handle b, void* c), (a, b, c))                              \
    X(cuGraphExecUpdate, "cuGraphExecUpdate", 10020, kBoth, update_exec_1,                         \
      (Handle a, Handle b, Handle * c, int* d), (a, b, c, d))                                      \
    X(cuGraphExecUpdate_v2, "cuGraphExecUpdate", 12000, kBoth, update_exec_2,                      \
      (Handle a, Handle b, void* c), (a, b, c))                                                    \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, kBoth, destroy_exec, (Handle a), (a))       \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, kLegacy, launch_graph, (Handle a, Handle b), (a, b))  \
    X(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, kPerThread, launch_graph, (Handle a, Handle b),  \
      (a, b))

// Function, grid (b to d), block (e to g), bytes of shared memory, stream, parameters, extra.
#define FABRIC_LAUNCH_PARAMETERS                                                               \
    (Handle a, unsigned int b, unsigned int c, unsigned int d, unsigned int e, unsigned int f, \
     unsigned int g, unsigned int h, Handle i, void** j, void** k)
#define FABRIC_COOPERATIVE_PARAMETERS                                                          \
    (Handle a, unsigned int b, unsigned int c, unsigned int d, unsigned int e, unsigned int f, \
     unsigned int g, unsigned int h, Handle i, void** j)

// Only kernels: copies and memsets are not held back. As far as they run on the processors, NVML
// counts their time, and the program's own kernels get the less for it. Per-thread forms begin with
// CUDA 7, which brought that kind of default stream.
#define FABRIC_LAUNCH_ENTRIES(X)                                                                   \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, kLegacy, launch_kernel, FABRIC_LAUNCH_PARAMETERS,    \
      (a, b, c, d, e, f, g, h, i, j, k))                                                           \
    X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, kPerThread, launch_kernel,                      \
      FABRIC_LAUNCH_PARAMETERS, (a, b, c, d, e, f, g, h, i, j, k))                                 \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, kLegacy, launch_kernel_ex,                      \
      (const LaunchConfig* a, Handle b, void** c, void** d), (a, b, c, d))                         \
    X(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, kPerThread, launch_kernel_ex,              \
      (const LaunchConfig* a, Handle b, void** c, void** d), (a, b, c, d))                         \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, kLegacy, launch_cooperative,   \
      FABRIC_COOPERATIVE_PARAMETERS, (a, b, c, d, e, f, g, h, i, j))                               \
    X(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000, kPerThread,               \
      launch_cooperative, FABRIC_COOPERATIVE_PARAMETERS, (a, b, c, d, e, f, g, h, i, j))           \
    X(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000, kBoth,   \
      launch_multi_device, (LaunchParams * a, unsigned int b, unsigned int c), (a, b, c))          \
    X(cuLaunch, "cuLaunch", 2000, kBoth, launch_old, (Handle a), (a))                              \
    X(cuLaunchGrid, "cuLaunchGrid", 2000, kBoth, launch_grid, (Handle a, int b, int c), (a, b, c)) \
    X(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, kBoth, launch_grid_async,                      \
      (Handle a, int b, int c, Handle d), (a, b, c, d))

// Where a stream begins to be captured into a graph and where that ends.
#define FABRIC_CAPTURE_ENTRIES(X)                                                                 \
    X(cuStreamBeginCapture, "cuStreamBeginCapture", 10000, kLegacy, begin_capture_1, (Handle a),  \
      (a))                                                                                        \
    X(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, kPerThread, begin_capture_1_own,  \
      (Handle a), (a))                                                                            \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, kLegacy, begin_capture_2,           \
      (Handle a, int b), (a, b))                                                                  \
    X(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, kPerThread,                    \
      begin_capture_2_own, (Handle a, int b), (a, b))                                             \
    X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, kLegacy, begin_to_graph, \
      (Handle a, Handle b, const Handle* c, const void* d, std::size_t e, int f),                 \
      (a, b, c, d, e, f))                                                                         \
    X(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030, kPerThread,         \
      begin_to_graph_own,                                                                         \
      (Handle a, Handle b, const Handle* c, const void* d, std::size_t e, int f),                 \
      (a, b, c, d, e, f))                                                                         \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, kLegacy, end_capture,                      \
      (Handle a, Handle * b), (a, b))                                                             \
    X(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000, kPerThread, end_capture_own,          \
      (Handle a, Handle * b), (a, b))

// What reports to a program how large the GPU is, and the two ways on to further functions.
#define FABRIC_QUERY_ENTRIES(X)                                                   \
    X(cuMemGetInfo, "cuMemGetInfo", 2000, kBoth, memory_info_32,                  \
      (unsigned int* a, unsigned int* b), (a, b))                                 \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, kBoth, memory_info,                  \
      (std::size_t * a, std::size_t * b), (a, b))                                 \
    X(cuDeviceTotalMem, "cuDeviceTotalMem", 2000, kBoth, total_memory_32,         \
      (unsigned int* a, Device b), (a, b))                                        \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, kBoth, total_memory,         \
      (std::size_t * a, Device b), (a, b))                                        \
    X(cuGetProcAddress, "cuGetProcAddress", 11030, kBoth, proc_address_1,         \
      (const char* a, void** b, int c, std::uint64_t d), (a, b, c, d))            \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, kBoth, proc_address_2,      \
      (const char* a, void** b, int c, std::uint64_t d, int* e), (a, b, c, d, e)) \
    X(cuGetExportTable, "cuGetExportTable", 3000, kBoth, export_table,            \
      (const void** a, const Uuid* b), (a, b))

// Of another library, and without base names: an empty one is what cuGetProcAddress is never asked
// for. Not here: lists of graphics processes, and utilization, which stay those of the whole GPU.
#define FABRIC_NVML_ENTRIES(X)                                                                  \
    X(nvmlDeviceGetMemoryInfo, "", 0, kBoth, nvml_memory_1, (Handle a, NvmlMemory * b), (a, b)) \
    X(nvmlDeviceGetMemoryInfo_v2, "", 0, kBoth, nvml_memory_2, (Handle a, NvmlMemory2 * b),     \
      (a, b))                                                                                   \
    X(nvmlDeviceGetComputeRunningProcesses, "", 0, kBoth, nvml_processes_1,                     \
      (Handle a, unsigned int* b, NvmlProcess1* c), (a, b, c))                                  \
    X(nvmlDeviceGetComputeRunningProcesses_v2, "", 0, kBoth, nvml_processes_2,                  \
      (Handle a, unsigned int* b, NvmlProcess2* c), (a, b, c))                                  \
    X(nvmlDeviceGetComputeRunningProcesses_v3, "", 0, kBoth, nvml_processes_2,                  \
      (Handle a, unsigned int* b, NvmlProcess2* c), (a, b, c))

#define FABRIC_ALL_ENTRIES(X) \
    FABRIC_CONTEXT_ENTRIES(X) \
    FABRIC_MEMORY_ENTRIES(X)  \
    FABRIC_MAPPED_ENTRIES(X)  \
    FABRIC_POOL_ENTRIES(X)    \
    FABRIC_GRAPH_ENTRIES(X)   \
    FABRIC_LAUNCH_ENTRIES(X)  \
    FABRIC_CAPTURE_ENTRIES(X) \
    FABRIC_QUERY_ENTRIES(X)   \
    FABRIC_NVML_ENTRIES(X)

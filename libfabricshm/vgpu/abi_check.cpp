// Compares what cuda_abi.hpp and driver_entries.hpp say of the driver with NVIDIA's own header.
// Only compiled where that is installed; there is nothing to run.

#include <cuda.h>

#include <cstddef>

#include "libfabricshm/vgpu/cuda_abi.hpp"

namespace ours = fabricshm::cuda;

#define SAME_SIZE(own, theirs) static_assert(sizeof(ours::own) == sizeof(theirs))
#define SAME_PLACE(own, field, theirs, their_field) \
    static_assert(offsetof(ours::own, field) == offsetof(theirs, their_field))

static_assert(ours::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(ours::kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(ours::kSystemNotReady == CUDA_ERROR_SYSTEM_NOT_READY);
static_assert(ours::kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(ours::kOnDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(ours::kPointerDevice == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(static_cast<int>(ours::kPoolReservedCurrent) == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
static_assert(static_cast<int>(ours::kPoolUsedCurrent) == CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
static_assert(static_cast<int>(ours::kPoolReleaseThreshold) == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
static_assert(static_cast<int>(ours::kKernelNode) == CU_GRAPH_NODE_TYPE_KERNEL);
static_assert(static_cast<int>(ours::kChildGraphNode) == CU_GRAPH_NODE_TYPE_GRAPH);
static_assert(static_cast<int>(ours::kMemAllocNode) == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
static_assert(ours::kPerThreadStream == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
static_assert(ours::kLimitPrintfFifo == CU_LIMIT_PRINTF_FIFO_SIZE);
static_assert(ours::kLimitMallocHeap == CU_LIMIT_MALLOC_HEAP_SIZE);
static_assert(ours::kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(ours::kArrayLayered == CUDA_ARRAY3D_LAYERED);
static_assert(ours::kArrayCubemap == CUDA_ARRAY3D_CUBEMAP);
static_assert(ours::kArraySparse == CUDA_ARRAY3D_SPARSE);
static_assert(ours::kArrayDeferred == CUDA_ARRAY3D_DEFERRED_MAPPING);

SAME_SIZE(Pointer, CUdeviceptr);
SAME_SIZE(AllocationHandle, CUmemGenericAllocationHandle);
SAME_SIZE(Handle, CUstream);
SAME_SIZE(Uuid, CUuuid);
SAME_SIZE(IpcHandle, CUipcMemHandle);
SAME_SIZE(Location, CUmemLocation);

SAME_SIZE(AllocationProp, CUmemAllocationProp);
SAME_PLACE(AllocationProp, location, CUmemAllocationProp, location);
SAME_SIZE(PoolProps, CUmemPoolProps);
SAME_PLACE(PoolProps, location, CUmemPoolProps, location);
SAME_PLACE(PoolProps, max_bytes, CUmemPoolProps, maxSize);

SAME_SIZE(ArrayDescriptor, CUDA_ARRAY_DESCRIPTOR);
SAME_PLACE(ArrayDescriptor, channels, CUDA_ARRAY_DESCRIPTOR, NumChannels);
SAME_SIZE(Array3dDescriptor, CUDA_ARRAY3D_DESCRIPTOR);
SAME_PLACE(Array3dDescriptor, flags, CUDA_ARRAY3D_DESCRIPTOR, Flags);

SAME_SIZE(ExternalMemory, CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
SAME_PLACE(ExternalMemory, bytes, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size);

SAME_SIZE(LaunchConfig, CUlaunchConfig);
SAME_PLACE(LaunchConfig, block, CUlaunchConfig, blockDimX);
SAME_PLACE(LaunchConfig, stream, CUlaunchConfig, hStream);
SAME_SIZE(LaunchParams, CUDA_LAUNCH_PARAMS);
SAME_PLACE(LaunchParams, block, CUDA_LAUNCH_PARAMS, blockDimX);

SAME_SIZE(KernelNode, CUDA_KERNEL_NODE_PARAMS_v2);
SAME_PLACE(KernelNode, block, CUDA_KERNEL_NODE_PARAMS_v2, blockDimX);
SAME_SIZE(MemAllocNode, CUDA_MEM_ALLOC_NODE_PARAMS);
SAME_PLACE(MemAllocNode, bytes, CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);
SAME_SIZE(NodeParams, CUgraphNodeParams);
SAME_PLACE(NodeParams, alloc, CUgraphNodeParams, alloc);

// The parameters of the forms that this header declares, as far as their number and sizes go: that
// is what decides in which registers they come, as long as none is a floating-point number. Older
// forms, which no header declares any more, can't be compared.
namespace {

template <typename Function>
struct Shape;

template <typename Result, typename... Parameters>
struct Shape<Result(Parameters...)> {
    static constexpr std::size_t kCount = sizeof...(Parameters);
    static constexpr std::size_t kBytes = (sizeof(Parameters) + ... + 0);
};

}  // namespace

#define SAME_SHAPE(theirs, ...)                                                         \
    static_assert(Shape<decltype(theirs)>::kCount == Shape<int(__VA_ARGS__)>::kCount && \
                  Shape<decltype(theirs)>::kBytes == Shape<int(__VA_ARGS__)>::kBytes)

using ours::Device;
using ours::Handle;
using ours::Pointer;

// cuda.h gives these names to the newest forms by macros, so a new toolkit that moves a name on to
// a form with other parameters fails here.
SAME_SHAPE(cuMemAlloc, Pointer*, std::size_t);
SAME_SHAPE(cuMemAllocPitch, Pointer*, std::size_t*, std::size_t, std::size_t, unsigned int);
SAME_SHAPE(cuMemAllocAsync, Pointer*, std::size_t, Handle);
SAME_SHAPE(cuMemAllocFromPoolAsync, Pointer*, std::size_t, Handle, Handle);
SAME_SHAPE(cuMemCreate, void*, std::size_t, const void*, unsigned long long);
SAME_SHAPE(cuMemMap, Pointer, std::size_t, std::size_t, unsigned long long, unsigned long long);
SAME_SHAPE(cuMemImportFromShareableHandle, void*, void*, int);
SAME_SHAPE(cuIpcOpenMemHandle, Pointer*, ours::IpcHandle, unsigned int);
SAME_SHAPE(cuMemPoolImportFromShareableHandle, void*, void*, int, unsigned long long);
SAME_SHAPE(cuGraphAddNode, void*, Handle, const void*, const void*, std::size_t, void*);
SAME_SHAPE(cuGraphAddMemAllocNode, void*, Handle, const void*, std::size_t, void*);
SAME_SHAPE(cuGraphInstantiateWithFlags, void*, Handle, unsigned long long);
SAME_SHAPE(cuGraphInstantiateWithParams, void*, Handle, void*);
SAME_SHAPE(cuGraphExecUpdate, Handle, Handle, void*);
SAME_SHAPE(cuCtxSetLimit, int, std::size_t);
SAME_SHAPE(cuStreamBeginCapture, Handle, int);
SAME_SHAPE(cuStreamEndCapture, Handle, Handle*);
#if CUDA_VERSION >= 12030
SAME_SHAPE(cuStreamBeginCaptureToGraph, Handle, Handle, const void*, const void*, std::size_t, int);
#endif
SAME_SHAPE(cuLaunchKernelEx, const void*, Handle, void**, void**);
SAME_SHAPE(cuModuleLoadDataEx, void*, const void*, unsigned int, void*, void**);
SAME_SHAPE(cuLibraryLoadData, void*, const void*, void*, void**, unsigned int, void*, void**,
           unsigned int);
#if CUDA_VERSION >= 13000
SAME_SHAPE(cuCtxCreate, void*, void*, unsigned int, Device);
#endif

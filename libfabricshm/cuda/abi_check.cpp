// Compares what driver_entries.hpp says of the driver with NVIDIA's own header. Only compiled where
// that is installed; there is nothing to run.

#include <cuda.h>

#include <cstddef>

#include "libfabricshm/cuda/driver_entries.hpp"

namespace fabricshm::gpu {

static_assert(kRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kRegisterPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kRegisterDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(kMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kComputeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kPointerDevicePointer == CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
static_assert(kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kPointerBufferId == CU_POINTER_ATTRIBUTE_BUFFER_ID);
static_assert(kPointerHasIpcHandle == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
static_assert(cuda::kPointerDevice == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kMemoryOfDevice == CU_MEMORYTYPE_DEVICE);
static_assert(kOpenWithPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(kNotInitialised == CUDA_ERROR_NOT_INITIALIZED);
static_assert(kDeinitialised == CUDA_ERROR_DEINITIALIZED);
static_assert(kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(kUnsupportedPtx == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kContextDestroyed == CUDA_ERROR_CONTEXT_IS_DESTROYED);
static_assert(kAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(kCaptureFirst == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(kCaptureLast == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
static_assert(kNotRegistered == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);

// The functions whose forms the header still declares: number and sizes of their parameters.
template <typename Function>
struct ParameterShape;
template <typename Out, typename... Parameters>
struct ParameterShape<Out(Parameters...)> {
    static constexpr std::size_t kCount = sizeof...(Parameters);
    static constexpr std::size_t kBytes = (sizeof(Parameters) + ... + 0);
};

// cuda.h gives the name without a suffix to its newest form; all rows are of that one.
#define FABRIC_SAME_SHAPE(theirs, ...)                                                             \
    static_assert(                                                                                 \
        ParameterShape<decltype(theirs)>::kCount == ParameterShape<Status(__VA_ARGS__)>::kCount && \
        ParameterShape<decltype(theirs)>::kBytes == ParameterShape<Status(__VA_ARGS__)>::kBytes)

FABRIC_SAME_SHAPE(cuDeviceGetAttribute, int*, int, Device);
FABRIC_SAME_SHAPE(cuDeviceGetUuid, cuda::Uuid*, Device);
FABRIC_SAME_SHAPE(cuDevicePrimaryCtxRetain, Handle*, Device);
FABRIC_SAME_SHAPE(cuDevicePrimaryCtxRelease, Device);
FABRIC_SAME_SHAPE(cuCtxGetCurrent, Handle*);
FABRIC_SAME_SHAPE(cuCtxPushCurrent, Handle);
FABRIC_SAME_SHAPE(cuCtxPopCurrent, Handle*);
FABRIC_SAME_SHAPE(cuMemHostRegister, void*, std::size_t, unsigned int);
FABRIC_SAME_SHAPE(cuMemHostUnregister, void*);
FABRIC_SAME_SHAPE(cuMemHostGetDevicePointer, Pointer*, void*, unsigned int);
FABRIC_SAME_SHAPE(cuMemHostAlloc, void**, std::size_t, unsigned int);
FABRIC_SAME_SHAPE(cuMemAlloc, Pointer*, std::size_t);
FABRIC_SAME_SHAPE(cuMemFree, Pointer);
FABRIC_SAME_SHAPE(cuMemsetD8, Pointer, unsigned char, std::size_t);
FABRIC_SAME_SHAPE(cuPointerGetAttribute, void*, int, Pointer);
FABRIC_SAME_SHAPE(cuMemGetAddressRange, Pointer*, std::size_t*, Pointer);
FABRIC_SAME_SHAPE(cuIpcGetMemHandle, cuda::IpcHandle*, Pointer);
FABRIC_SAME_SHAPE(cuIpcOpenMemHandle, Pointer*, cuda::IpcHandle, unsigned int);
FABRIC_SAME_SHAPE(cuIpcCloseMemHandle, Pointer);
FABRIC_SAME_SHAPE(cuDeviceCanAccessPeer, int*, Device, Device);
FABRIC_SAME_SHAPE(cuModuleLoadData, Handle*, const void*);
FABRIC_SAME_SHAPE(cuModuleGetFunction, Handle*, Handle, const char*);
FABRIC_SAME_SHAPE(cuStreamQuery, Handle);
FABRIC_SAME_SHAPE(cuStreamSynchronize, Handle);
FABRIC_SAME_SHAPE(cuLaunchKernel, Handle, unsigned int, unsigned int, unsigned int, unsigned int,
                  unsigned int, unsigned int, unsigned int, Handle, void**, void**);

}  // namespace fabricshm::gpu

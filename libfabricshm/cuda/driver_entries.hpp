// The functions of the CUDA driver that are called here, one row each. By the names that the
// library exports; cuda.h gives some of them to programs by macros.

#pragma once

#include <cstddef>
#include <cstdint>

#include "libfabricshm/vgpu/cuda_abi.hpp"

namespace fabricshm::gpu {

using cuda::Device;
using cuda::Handle;
using cuda::Pointer;
using cuda::Status;

// clang-format off
#define FABRIC_CUDA_ENTRIES(ROW)                                                                      \
    /*  member             exported name                    parameters */                             \
    ROW(init,              "cuInit",                        (unsigned int))                           \
    ROW(driver_version,    "cuDriverGetVersion",            (int*))                                   \
    ROW(error_name,        "cuGetErrorName",                (Status, const char**))                   \
    ROW(device_count,      "cuDeviceGetCount",              (int*))                                   \
    ROW(device_get,        "cuDeviceGet",                   (Device*, int))                           \
    ROW(device_attribute,  "cuDeviceGetAttribute",          (int*, int, Device))                      \
    ROW(device_uuid,       "cuDeviceGetUuid",               (cuda::Uuid*, Device))                    \
    ROW(primary_retain,    "cuDevicePrimaryCtxRetain",      (Handle*, Device))                        \
    ROW(primary_release,   "cuDevicePrimaryCtxRelease_v2",  (Device))                                 \
    ROW(current_context,   "cuCtxGetCurrent",               (Handle*))                                \
    ROW(push_context,      "cuCtxPushCurrent_v2",           (Handle))                                 \
    ROW(pop_context,       "cuCtxPopCurrent_v2",            (Handle*))                                \
    ROW(host_register,     "cuMemHostRegister_v2",          (void*, std::size_t, unsigned int))       \
    ROW(host_unregister,   "cuMemHostUnregister",           (void*))                                  \
    ROW(host_pointer,      "cuMemHostGetDevicePointer_v2",  (Pointer*, void*, unsigned int))          \
    ROW(host_alloc,        "cuMemHostAlloc",                (void**, std::size_t, unsigned int))      \
    ROW(host_free,         "cuMemFreeHost",                 (void*))                                  \
    ROW(alloc,             "cuMemAlloc_v2",                 (Pointer*, std::size_t))                  \
    ROW(free,              "cuMemFree_v2",                  (Pointer))                                \
    ROW(fill_bytes,        "cuMemsetD8_v2",                 (Pointer, unsigned char, std::size_t))    \
    ROW(pointer_attribute, "cuPointerGetAttribute",         (void*, int, Pointer))                    \
    ROW(address_range,     "cuMemGetAddressRange_v2",       (Pointer*, std::size_t*, Pointer))        \
    ROW(ipc_handle,        "cuIpcGetMemHandle",             (cuda::IpcHandle*, Pointer))              \
    ROW(ipc_open,          "cuIpcOpenMemHandle_v2",         (Pointer*, cuda::IpcHandle, unsigned int)) \
    ROW(ipc_close,         "cuIpcCloseMemHandle",           (Pointer))                                \
    ROW(can_access_peer,   "cuDeviceCanAccessPeer",         (int*, Device, Device))                   \
    ROW(load_module,       "cuModuleLoadData",              (Handle*, const void*))                   \
    ROW(unload_module,     "cuModuleUnload",                (Handle))                                 \
    ROW(get_function,      "cuModuleGetFunction",           (Handle*, Handle, const char*))           \
    ROW(stream_capturing,  "cuStreamIsCapturing",           (Handle, int*))                           \
    ROW(stream_query,      "cuStreamQuery",                 (Handle))                                 \
    ROW(stream_wait,       "cuStreamSynchronize",           (Handle))                                 \
    ROW(launch,            "cuLaunchKernel",                (Handle, unsigned int, unsigned int, unsigned int, \
                                                             unsigned int, unsigned int, unsigned int, \
                                                             unsigned int, Handle, void**, void**))
// clang-format on

// Numbers of cuda.h; abi_check.cpp compares them with it.
inline constexpr unsigned int kRegisterPortable = 1;   // in all contexts of the process
inline constexpr unsigned int kRegisterDeviceMap = 2;  // with an address on the device
inline constexpr int kMultiprocessorCount = 16;
inline constexpr int kComputeMajor = 75;
inline constexpr int kComputeMinor = 76;
// What cuPointerGetAttribute is asked for; cuda::kPointerDevice is another.
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerDevicePointer = 3;
inline constexpr int kPointerBufferId = 7;
inline constexpr int kPointerHasIpcHandle = 10;
inline constexpr unsigned int kMemoryOfDevice = 2;      // a kPointerMemoryType
inline constexpr unsigned int kOpenWithPeerAccess = 1;  // the only flag of cuIpcOpenMemHandle

inline constexpr Status kNotInitialised = 3;
inline constexpr Status kDeinitialised = 4;
inline constexpr Status kInvalidContext = 201;
inline constexpr Status kNoBinaryForGpu = 209;
inline constexpr Status kUnsupportedPtx = 222;
inline constexpr Status kNotReady = 600;
inline constexpr Status kContextDestroyed = 709;
inline constexpr Status kAlreadyRegistered = 712;
inline constexpr Status kNotRegistered = 713;
// All that a capture does not allow: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and those after it.
inline constexpr Status kCaptureFirst = 900;
inline constexpr Status kCaptureLast = 908;

}  // namespace fabricshm::gpu

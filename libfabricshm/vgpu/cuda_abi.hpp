// The part of the CUDA driver's binary interface that the shim speaks, written down here so that no
// CUDA header is needed to build it. Where one is installed, abi_check.cpp compares every size and
// offset with it. Names are the driver's own without their prefix; handles are void pointers.
//
// Enumerations are int here: a C enum whose values fit has that size in the ABI of every machine
// that CUDA runs on. Fields that are not read here are there for the offsets of those that follow.

#pragma once

#include <cstddef>
#include <cstdint>

namespace fabricshm::cuda {

using Status = int;
inline constexpr Status kSuccess = 0;
inline constexpr Status kInvalidValue = 1;
inline constexpr Status kOutOfMemory = 2;
inline constexpr Status kNoDevice = 100;  // also where this driver has not the function at all
inline constexpr Status kSystemNotReady = 802;  // a daemon that the GPU is used with does not run

using Device = int;
using Pointer = unsigned long long;  // an address on the device
using Handle = void*;                // contexts, streams, arrays, pools, graphs, modules
using AllocationHandle = unsigned long long;

/// Where memory lies: the type decides whether a vGPU is asked at all, the number which one.
struct Location {
    int type;
    int id;  // of the device; of a node, or nothing, for memory of the host
};
inline constexpr int kOnDevice = 1;

/// What cuPointerGetAttribute is asked for: the device that the memory was allocated on, whichever
/// context maps it.
inline constexpr int kPointerDevice = 9;

/// What cuMemCreate is asked for; read for its location only. The size comes next to it.
struct AllocationProp {
    int type;
    int handle_types;
    Location location;
    void* win32;
    unsigned char flags[8];
};

/// Of a pool, and of an allocation node. Later toolkits put `max_bytes`, and after it a word for
/// the use, into what had been reserved: older programs leave 0 there, and the size is still the
/// same.
struct PoolProps {
    int type;
    int handle_types;
    Location location;
    void* win32;
    std::size_t max_bytes;
    unsigned char reserved[56];
};

// Reserved is what the pool has of the device, used what of it is handed out: the first is charged.
enum PoolAttribute : int {
    kPoolReleaseThreshold = 4,
    kPoolReservedCurrent = 5,
    kPoolReservedHigh = 6,
    kPoolUsedCurrent = 7,
};

// Sizes in elements, not bytes. A height or depth of 0 means that the array has no such dimension.
struct ArrayDescriptor {
    std::size_t width;
    std::size_t height;
    int format;
    unsigned int channels;
};

struct Array3dDescriptor {
    std::size_t width;
    std::size_t height;
    std::size_t depth;
    int format;
    unsigned int channels;
    unsigned int flags;
};
// Flags of a 3D array with which its depth counts layers or faces, of which each level of a mipmap
// has all; and those that say how its memory comes: later, by mapping, not with the array.
inline constexpr unsigned int kArrayLayered = 0x01;
inline constexpr unsigned int kArrayCubemap = 0x04;
inline constexpr unsigned int kArraySparse = 0x40;
inline constexpr unsigned int kArrayDeferred = 0x80;

/// Memory of a graphics API that is imported. Its size is what the caller says: a caller that says
/// less than there is can't map the rest either.
struct ExternalMemory {
    int type;
    union {
        int fd;
        struct {
            void* handle;
            const void* name;
        } win32;
    } handle;
    unsigned long long bytes;
    unsigned int flags;
    unsigned int reserved[16];
};

/// Passed by value: its size is part of the calling convention.
struct IpcHandle {
    char bytes[64];
};

struct Uuid {
    unsigned char bytes[16];
};

/// Of cuLaunchKernelEx. Attributes are passed on unread: clusters and priorities change when and
/// where the threads run, not how many there are.
struct LaunchConfig {
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared_bytes;
    Handle stream;
    void* attributes;
    unsigned int attribute_count;
};

/// One of cuLaunchCooperativeKernelMultiDevice.
struct LaunchParams {
    Handle function;
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared_bytes;
    Handle stream;
    void** parameters;
};

enum NodeType : int { kKernelNode = 0, kChildGraphNode = 4, kMemAllocNode = 10 };

/// Of a kernel node, in both versions: the second one is longer, by the last two fields, and the
/// driver's older function leaves those alone.
struct KernelNode {
    Handle function;
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared_bytes;
    void** parameters;
    void** extra;
    Handle kernel;
    Handle context;
};

struct MemAllocNode {
    PoolProps pool;
    const void* access;
    std::size_t access_count;
    std::size_t bytes;
    Pointer pointer;
};

/// What cuGraphAddNode takes: a type, and 232 bytes whose meaning the type says.
struct NodeParams {
    int type;
    int reserved0[3];
    union {
        long long space[29];
        MemAllocNode alloc;
    };
    long long reserved2;
};

// Limits of a context: the two that are sizes in bytes of the device's memory.
inline constexpr int kLimitPrintfFifo = 1;
inline constexpr int kLimitMallocHeap = 2;

/// The mode of a thread in which its calls break no capture. See cuThreadExchangeStreamCaptureMode.
inline constexpr int kCaptureRelaxed = 2;

/// Flags of cuGetProcAddress.
inline constexpr std::uint64_t kPerThreadStream = 2;

// NVML. No header of it is at hand where only the toolkit is installed, so nothing compares these
// with it: they are as in NVIDIA's documentation. Each list of processes is an array, so a size
// that is wrong would show from the second process on.
struct NvmlMemory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};
struct NvmlMemory2 {
    unsigned int version;  // the caller's, with the structure's size in it: NVML itself checks it
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
};
struct NvmlProcess1 {
    unsigned int pid;
    unsigned long long used;
};
struct NvmlProcess2 {  // of versions 2 and 3
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance;
    unsigned int compute_instance;
};
// One process in one interval of NVML's own, in per cent of that interval.
struct NvmlUtilization {
    unsigned int pid;  // as the host counts: LedgerUse::host_pid
    unsigned long long time_us;
    unsigned int sm;
    unsigned int memory;
    unsigned int encoder;
    unsigned int decoder;
};
// In place of a process's bytes: NVML can't report them (no right to, or a mode without such an
// account).
inline constexpr unsigned long long kNvmlNotAvailable = ~0ULL;

inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlNotFound = 6;
inline constexpr int kNvmlNotSupported = 3;
inline constexpr int kNvmlTooSmall = 7;
inline constexpr int kNvmlNoFunction = 13;
inline constexpr int kNvmlNoMemory = 20;

}  // namespace fabricshm::cuda

// The part of the CUDA driver's binary interface that the shim speaks, written down here so that no
// CUDA header is needed to build it. Where one is installed, abi_check.cpp compares every size and
// offset with it. Names are the driver's own without their prefix; handles are void pointers.

#pragma once

#include <cstddef>
#include <cstdint>

namespace fabricshm::cuda {

using Status = int;
inline constexpr Status kSuccess = 0;
inline constexpr Status kInvalidValue = 1;
inline constexpr Status kOutOfMemory = 2;
inline constexpr Status kNoDevice = 100;

using Device = int;
using Pointer = unsigned long long;  // an address on the device
using Handle = void*;                // contexts, streams, arrays, pools, graphs, modules
using AllocationHandle = unsigned long long;

struct Location {
    int type;
    int id;
};
inline constexpr int kOnDevice = 1;

struct AllocationProp {
    int type;
    int handle_types;
    Location location;
    void* win32;
    unsigned char flags[8];
};

struct PoolProps {
    int type;
    int handle_types;
    Location location;
    void* win32;
    std::size_t max_bytes;
    unsigned char reserved[56];
};

enum PoolAttribute : int {
    kPoolReleaseThreshold = 4,
    kPoolReservedCurrent = 5,
    kPoolReservedHigh = 6,
    kPoolUsedCurrent = 7,
};

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

struct IpcHandle {
    char bytes[64];
};

struct Uuid {
    unsigned char bytes[16];
};

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

/// Of a kernel node, in both versions: the second one is longer.
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

/// What cuGraphAddNode takes: a type, and 232 bytes of which the type tells what they are.
struct NodeParams {
    int type;
    int reserved0[3];
    union {
        long long space[29];
        MemAllocNode alloc;
    };
    long long reserved2;
};

/// Flags of cuGetProcAddress.
inline constexpr std::uint64_t kPerThreadStream = 2;

// NVML.
struct NvmlMemory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};
struct NvmlMemory2 {
    unsigned int version;
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
struct NvmlUtilization {
    unsigned int pid;
    unsigned long long time_us;
    unsigned int sm;
    unsigned int memory;
    unsigned int encoder;
    unsigned int decoder;
};
inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlNotFound = 6;
inline constexpr int kNvmlNotSupported = 3;
inline constexpr int kNvmlTooSmall = 7;
inline constexpr int kNvmlNoMemory = 20;

}  // namespace fabricshm::cuda

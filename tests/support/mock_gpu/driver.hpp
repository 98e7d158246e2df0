// What the files of the mock driver share.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "libfabricshm/vgpu/cuda_abi.hpp"

namespace mock_gpu {

using namespace fabricshm::cuda;

inline constexpr Status kNotInitialized = 3;
inline constexpr Status kInvalidDevice = 101;
inline constexpr Status kInvalidContext = 201;
inline constexpr Status kNotFound = 500;
inline constexpr Status kNotReady = 600;
inline constexpr Status kCaptureUnsupported = 900;
inline constexpr Status kCaptureInvalidated = 901;
inline constexpr Status kCaptureImplicit = 906;
inline constexpr int kPointerDevicePointer = 3;  // what cuPointerGetAttribute is asked for

/// A kernel that was looked up by name, and its argument as it was when it was captured.
struct NamedLaunch {
    Handle function = nullptr;
    unsigned int blocks = 0;
    unsigned int threads = 0;
    std::vector<std::byte> argument;
};

struct Node {
    int type = 0;
    NamedLaunch named;  // a kernel node that was captured, of such a kernel
    KernelNode kernel{};
    MemAllocNode alloc{};
    struct Graph* child = nullptr;
};

struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
};

struct Executable {
    std::uint64_t bytes = 0;
    std::uint64_t threads = 0;
    int device = 0;
    std::vector<NamedLaunch> named;  // one after the other
};

struct Context {
    int device = 0;
    std::uint64_t bytes = 0;
    std::set<Pointer> pointers;
    std::uint64_t limits[3] = {};  // bytes that they take, in `bytes` as well
};

struct Pool {
    std::uint64_t reserved = 0;
    std::uint64_t used = 0;
    std::uint64_t threshold = 0;
    bool on_device = true;
};

struct Linear {
    std::uint64_t bytes = 0;
    Pool* pool = nullptr;  // whose memory it is
    int device = 0;
};

/// All of the driver's state in this process, behind one lock.
struct Driver {
    std::recursive_mutex mutex;
    bool is_up = false;
    std::set<Context*> contexts;
    Context primary;
    int primary_count = 0;
    std::map<Pointer, Linear> linear;
    Pool default_pool;
    std::set<Pool*> pools;
    std::vector<Pool*> ended_pools;         // the next one made gets the handle of the last
    std::map<Handle, std::uint64_t> sized;  // arrays and imported memory
    Pointer next_address = 0x700000000000;
    std::map<Handle, Graph*> capturing;  // by stream
    bool is_capture_broken = false;
    std::map<int, std::uint64_t> graph_bytes;  // by device: of ended graphs, until they are trimmed
    int calls = 0;
};

Driver& driver();
Context* current();

/// $FABRIC_MOCK_DEVICES, 1 without. Those after the first have no memory of their own: what is
/// taken there is the first one's as well.
int device_count();

/// Whether the calling thread may do now what a capture does not allow: all captures are global. If
/// not they are broken by it.
bool may_do_unsafe();

/// An address for `bytes` bytes, of which nothing can be read.
Pointer new_address(std::uint64_t bytes);

/// host.cpp: of memory of the host; and what is kept of kernels that are found by name.
bool reaches_host(Pointer address, Pointer& device);
Status record_launch(Handle function, unsigned int blocks, unsigned int threads, Handle stream,
                     void** parameters);
/// What of a launch is captured; nothing of a kernel that was not looked up by name.
NamedLaunch named_launch(Handle function, unsigned int blocks, unsigned int threads,
                         void** parameters);
void name_function(Handle function, const char* name);
/// Device memory that can be read here, for HostState::real_memory; of other memory: false,
/// nothing.
Status take_real(Pointer* out, std::size_t bytes);
bool give_real(Pointer pointer);
void fill_real(Pointer pointer, unsigned char value, std::size_t bytes);
/// Nothing: it is none of such memory.
std::optional<Status> real_range(Pointer* base, std::size_t* bytes, Pointer pointer);
std::optional<Status> real_attribute(void* out, int attribute, Pointer pointer);
std::optional<Status> real_handle(IpcHandle* out, Pointer pointer);
std::optional<Status> open_real(Pointer* out, const IpcHandle& handle);
std::optional<Status> close_real(Pointer pointer);

std::uint64_t threads_of(const unsigned int (&grid)[3], const unsigned int (&block)[3]);

}  // namespace mock_gpu

#define MOCK_EXPORT extern "C" __attribute__((visibility("default")))

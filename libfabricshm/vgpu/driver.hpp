// The real driver behind the shim: where its functions are, and which of ours stands in for which.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "libfabricshm/vgpu/cuda_abi.hpp"
#include "libfabricshm/vgpu/driver_entries.hpp"

namespace fabricshm::cuda {

/// What a null stream means in a form: the legacy default stream, which waits for all others and
/// they for it, or the calling thread's own. kBoth: the form takes no stream.
enum Flavour : int { kBoth, kLegacy, kPerThread };

/// One for each line of the table, in its order, so that it is also the index of everything that is
/// kept for each line.
enum class Entry : int {
#define FABRIC_ENTRY_NAME(symbol, base, since, flavour, handler, params, args) symbol,
    FABRIC_ALL_ENTRIES(FABRIC_ENTRY_NAME)
#undef FABRIC_ENTRY_NAME
        kCount
};
inline constexpr int kEntryCount = static_cast<int>(Entry::kCount);

struct EntryInfo {
    const char* symbol;
    const char* base;  // as cuGetProcAddress is asked; "": not of the driver
    int since;         // CUDA version, 1000 * major + 10 * minor
    Flavour flavour;
    void* wrapper;  // ours
};

/// The line of the table for an entry.
const EntryInfo& info_of(Entry entry) noexcept;

/// The line for a symbol, or nullptr. Any thread, also before main().
const EntryInfo* find_entry(const char* symbol) noexcept;

/// The driver's own function; nullptr when this driver has none of that name, or there is no
/// driver. The first call loads libcuda.so.1 or libnvidia-ml.so.1. Thread-safe.
void* real_address(Entry entry) noexcept;

/// As above, as a pointer to `Function`: the type is right because the definition of the entry took
/// it from the same line of the table as the symbol.
template <typename Function>
Function real(Entry entry) noexcept {
    return reinterpret_cast<Function>(real_address(entry));
}

/// What cuGetProcAddress should answer for `base` where the driver answered `found`: our function
/// of the same form, or `found` when there is none. Where the form can't be determined by the
/// address it is the latest one here that `version` knows: a driver with a later one of other
/// parameters, at an address that it does not export, would be misunderstood.
void* stand_in(const char* base, void* found, int version, std::uint64_t flags) noexcept;

/// Any other function of the driver (or of NVML), for our own use; nullptr when it has none.
void* driver_symbol(const char* name) noexcept;
void* nvml_symbol(const char* name) noexcept;

/// The dlsym of the C library, past our own. RTLD_NEXT means what is next after this library.
void* real_dlsym(void* handle, const char* name) noexcept;

/// Names that the driver exports, for the self-check; empty without a driver.
std::vector<std::string> driver_exports();

/// Functions that the hooks need and that have no stand-in; a null one is not in this driver. By
/// name, not through cuGetProcAddress, which older drivers do not have.
struct Helpers {
    Status (*device_count)(int*);
    Status (*device_uuid)(Uuid*, Device);
    Status (*current_device)(Device*);
    Status (*current_context)(Handle*);
    Status (*primary_state)(Device, unsigned int*, int*);
    Status (*address_range)(Pointer*, std::size_t*, Pointer);
    Status (*pointer_attribute)(void*, int, Pointer);
    Status (*allocation_properties)(AllocationProp*, AllocationHandle);
    Status (*is_capturing)(Handle, int*);
    Status (*is_capturing_per_thread)(Handle, int*);
    Status (*exchange_capture_mode)(int*);
    Status (*device_pool)(Handle*, Device);
    Status (*pool_attribute)(Handle, int, void*);
    Status (*graph_nodes)(Handle, Handle*, std::size_t*);
    Status (*node_type)(Handle, int*);
    Status (*child_graph)(Handle, Handle*);
    Status (*kernel_node)(Handle, KernelNode*);
    Status (*alloc_node)(Handle, MemAllocNode*);
    Status (*graph_trim)(Device);
};

/// Looked up once, when first asked for.
const Helpers& helpers() noexcept;

/// Whether what is called on `stream` now becomes part of a graph instead of being done.
bool is_captured(Handle stream) noexcept;

}  // namespace fabricshm::cuda

#include "libfabricshm/vgpu/driver.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "libfabricshm/vgpu/elf_symbols.hpp"
#include "libfabricshm/vgpu/hooks.hpp"

namespace fabricshm::cuda {

namespace {

// All of the table that is constant.
constexpr EntryInfo kEntries[] = {
#define FABRIC_ENTRY_LINE(symbol, base, since, flavour, handler, params, args) \
    {#symbol, base, since, flavour, nullptr},
    FABRIC_ALL_ENTRIES(FABRIC_ENTRY_LINE)
#undef FABRIC_ENTRY_LINE
};

// With the addresses of our functions, which are no constants in a shared library.
struct Table {
    EntryInfo lines[kEntryCount];
    Table() {
        for (int i = 0; i < kEntryCount; ++i) lines[i] = kEntries[i];
        int at = 0;
#define FABRIC_ENTRY_WRAPPER(symbol, base, since, flavour, handler, params, args) \
    lines[at++].wrapper = reinterpret_cast<void*>(&symbol);
        FABRIC_ALL_ENTRIES(FABRIC_ENTRY_WRAPPER)
#undef FABRIC_ENTRY_WRAPPER
    }
};

const Table& table() noexcept {
    static const Table made;
    return made;
}

// The driver's functions as far as they were looked up. Zero until then without a constructor.
std::atomic<void*> g_real[kEntryCount];

using Dlsym = void* (*)(void*, const char*);

void* load(const char* soname) noexcept {
    // The program's own handle counts when it has one: then both get the same library. By the name
    // that programs use, so that LD_LIBRARY_PATH finds the same file for both. Never closed: its
    // functions are called from destructors.
    return ::dlopen(soname, RTLD_LAZY | RTLD_GLOBAL);
}

void* driver_handle() noexcept {
    static void* const handle = load("libcuda.so.1");
    return handle;
}

void* nvml_handle() noexcept {
    static void* const handle = load("libnvidia-ml.so.1");
    return handle;
}

bool is_nvml(const char* symbol) noexcept {
    return std::strncmp(symbol, "nvml", 4) == 0;
}

}  // namespace

const EntryInfo& info_of(Entry entry) noexcept {
    return table().lines[static_cast<int>(entry)];
}

const EntryInfo* find_entry(const char* symbol) noexcept {
    // Programs ask dlsym for all sorts of names; few begin like these.
    const bool is_candidate = symbol != nullptr && ((symbol[0] == 'c' && symbol[1] == 'u') ||
                                                    (symbol[0] == 'n' && symbol[1] == 'v'));
    if (!is_candidate) return nullptr;
    for (const EntryInfo& line : table().lines) {
        if (std::strcmp(line.symbol, symbol) == 0) return &line;
    }
    return nullptr;
}

void* real_dlsym(void* handle, const char* name) noexcept {
    static const auto found = reinterpret_cast<Dlsym>(libc_symbol("dlsym"));
    return found != nullptr ? found(handle, name) : nullptr;
}

void* driver_symbol(const char* name) noexcept {
    void* handle = driver_handle();
    return handle != nullptr ? real_dlsym(handle, name) : nullptr;
}

void* nvml_symbol(const char* name) noexcept {
    void* handle = nvml_handle();
    return handle != nullptr ? real_dlsym(handle, name) : nullptr;
}

void* real_address(Entry entry) noexcept {
    auto& slot = g_real[static_cast<int>(entry)];
    // Relaxed: acquire and release are not needed for a function's address: code is there before it
    // is found. Two threads may look it up at the same time and store the same. What is not found
    // is looked up again: that is where programs look for functions, not where they call them.
    if (void* known = slot.load(std::memory_order_relaxed); known != nullptr) return known;
    const char* symbol = kEntries[static_cast<int>(entry)].symbol;
    void* found = is_nvml(symbol) ? nvml_symbol(symbol) : driver_symbol(symbol);
    slot.store(found, std::memory_order_relaxed);
    return found;
}

void* stand_in(const char* base, void* found, int version, std::uint64_t flags) noexcept {
    if (found == nullptr || base == nullptr) return found;
    // A driver whose answers are its exported functions says by the address which form it means.
    for (int i = 0; i < kEntryCount; ++i) {
        const bool is_same = std::strcmp(kEntries[i].base, base) == 0 &&
                             real_address(static_cast<Entry>(i)) == found;
        if (is_same) return table().lines[i].wrapper;
    }
    // An exported function that is not in the table: a later form, whose parameters are not known
    // here. The self-check lists it.
    Dl_info where{};
    const bool is_exported =
        ::dladdr(found, &where) != 0 && where.dli_sname != nullptr && where.dli_saddr == found;
    if (is_exported && std::strncmp(where.dli_sname, base, std::strlen(base)) == 0) return found;
    // Otherwise the rule of cuGetProcAddress: the latest form that `version` knows.
    const Flavour wanted = (flags & kPerThreadStream) != 0 ? kPerThread : kLegacy;
    int best = -1;
    for (int i = 0; i < kEntryCount; ++i) {
        const EntryInfo& line = kEntries[i];
        const bool fits = std::strcmp(line.base, base) == 0 && line.since <= version &&
                          (line.flavour == kBoth || line.flavour == wanted);
        if (fits && (best < 0 || line.since >= kEntries[best].since)) best = i;
    }
    if (best < 0) return found;
    // An address without a symbol is then the only way to the function, unless the driver exports
    // one of the same name as well: that was stored first, and does the same. Relaxed: as in
    // real_address().
    void* nobody = nullptr;
    g_real[best].compare_exchange_strong(nobody, found, std::memory_order_relaxed);
    return table().lines[best].wrapper;
}

std::vector<std::string> driver_exports() {
    void* handle = driver_handle();
    return handle != nullptr ? exported_names(handle) : std::vector<std::string>{};
}

const Helpers& helpers() noexcept {
    static const Helpers found = [] {
        Helpers all{};
        // `other`: the form of an older driver that fills what we read of it in the same way.
        const auto get = [](auto& function, const char* name, const char* other = nullptr) {
            void* address = driver_symbol(name);
            if (address == nullptr && other != nullptr) address = driver_symbol(other);
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
        };
        get(all.device_count, "cuDeviceGetCount");
        get(all.device_uuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid");
        get(all.current_device, "cuCtxGetDevice");
        get(all.current_context, "cuCtxGetCurrent");
        get(all.primary_state, "cuDevicePrimaryCtxGetState");
        get(all.address_range, "cuMemGetAddressRange_v2");
        get(all.pointer_attribute, "cuPointerGetAttribute");
        get(all.allocation_properties, "cuMemGetAllocationPropertiesFromHandle");
        get(all.is_capturing, "cuStreamIsCapturing");
        get(all.is_capturing_per_thread, "cuStreamIsCapturing_ptsz");
        get(all.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
        get(all.device_pool, "cuDeviceGetMemPool");
        get(all.pool_attribute, "cuMemPoolGetAttribute");
        get(all.graph_nodes, "cuGraphGetNodes");
        get(all.node_type, "cuGraphNodeGetType");
        get(all.child_graph, "cuGraphChildGraphNodeGetGraph");
        get(all.kernel_node, "cuGraphKernelNodeGetParams_v2", "cuGraphKernelNodeGetParams");
        get(all.alloc_node, "cuGraphMemAllocNodeGetParams");
        get(all.graph_trim, "cuDeviceGraphMemTrim");
        return all;
    }();
    return found;
}

bool is_captured(Handle stream) noexcept {
    // The forms differ in what a null stream means to them. The legacy one is never captured, so
    // only the thread's own is asked about. A launch on the legacy stream is taken for captured
    // then, when the thread's own is: the driver refuses it, since the two wait for each other.
    const auto legacy = stream != nullptr ? helpers().is_capturing : nullptr;
    for (const auto ask : {legacy, helpers().is_capturing_per_thread}) {
        int state = 0;
        if (ask != nullptr && ask(stream, &state) == kSuccess && state != 0) return true;
    }
    return false;
}

}  // namespace fabricshm::cuda

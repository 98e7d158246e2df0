// Mock driver: memory.

#include <algorithm>

#include "tests/support/mock_gpu/device.hpp"
#include "tests/support/mock_gpu/driver.hpp"
#include "tests/support/mock_gpu/host.hpp"
#include "tests/support/mock_gpu/streams.hpp"

using namespace mock_gpu;

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

Status allocate(Pointer* out, std::uint64_t bytes) {
    const Lock lock(driver().mutex);
    if (current() == nullptr) return kInvalidContext;
    if (bytes == 0) return kInvalidValue;
    const std::uint64_t taken = taken_by(bytes);
    if (!take(taken)) return kOutOfMemory;
    *out = new_address(bytes);
    driver().linear[*out] = {taken, nullptr, current()->device};
    current()->pointers.insert(*out);
    return kSuccess;
}

// Gives memory back beyond what is used and `keep`.
void trim(Pool& pool, std::uint64_t keep) {
    const std::uint64_t wanted = std::max(pool.used, taken_by(std::max<std::uint64_t>(keep, 1)));
    const std::uint64_t left =
        keep == 0 && pool.used == 0 ? 0 : (wanted + (2U << 20) - 1) >> 21 << 21;
    if (left >= pool.reserved) return;
    if (pool.on_device) give(pool.reserved - left);
    pool.reserved = left;
}

Status from_pool(Pointer* out, std::uint64_t bytes, Pool& pool) {
    const Lock lock(driver().mutex);
    const std::uint64_t taken = (bytes + 511) / 512 * 512;
    if (pool.used + taken > pool.reserved) {
        const std::uint64_t more = (pool.used + taken - pool.reserved + (2U << 20) - 1) >> 21 << 21;
        if (pool.on_device && !take(more)) return kOutOfMemory;
        pool.reserved += more;
    }
    pool.used += taken;
    *out = new_address(bytes);
    driver().linear[*out] = {taken, &pool, current() != nullptr ? current()->device : 0};
    return kSuccess;
}

struct Opened {
    std::uint64_t bytes;  // and the device, see kDeviceAt
    int count;
};
std::map<Pointer, Opened> g_opened;  // memory of other processes

Status free_linear(Pointer pointer) {
    if (pointer == 0) return kSuccess;  // cudaFree(nullptr) comes through, and is no error
    const Lock lock(driver().mutex);
    if (const auto opened = g_opened.find(pointer); opened != g_opened.end()) {
        if (--opened->second.count > 0) return kSuccess;
        g_opened.erase(opened);
    }
    const auto found = driver().linear.find(pointer);
    if (found == driver().linear.end()) return kInvalidValue;
    if (found->second.pool != nullptr) {
        found->second.pool->used -= found->second.bytes;
    } else {
        give(found->second.bytes);
    }
    driver().linear.erase(found);
    for (Context* context : driver().contexts) context->pointers.erase(pointer);
    driver().primary.pointers.erase(pointer);
    return kSuccess;
}

Status sized(Handle* out, std::uint64_t bytes) {
    const Lock lock(driver().mutex);
    if (!take(bytes)) return kOutOfMemory;
    *out = reinterpret_cast<Handle>(new_address(4096));
    driver().sized[*out] = bytes;
    return kSuccess;
}

Status free_sized(Handle handle) {
    const Lock lock(driver().mutex);
    const auto found = driver().sized.find(handle);
    if (found == driver().sized.end()) return kInvalidValue;
    give(found->second);
    driver().sized.erase(found);
    return kSuccess;
}

std::uint64_t array_bytes(std::uint64_t width, std::uint64_t height, std::uint64_t depth,
                          int format, unsigned int channels) {
    const bool is_wide = format == 0x03 || format == 0x0a || format == 0x20;
    const bool is_byte = format == 0x01 || format == 0x08;
    const std::uint64_t texel = (is_wide ? 4U : is_byte ? 1U : 2U) * std::uint64_t{channels};
    const std::uint64_t row = (std::max<std::uint64_t>(width, 1) * texel + 511) / 512 * 512;
    return row * std::max<std::uint64_t>(height, 1) * std::max<std::uint64_t>(depth, 1);
}

struct Physical {
    std::uint64_t bytes;
    int handles;
    int mappings;
    Location where{kOnDevice, 0};
};

// Numbers that stand for memory of other processes: bytes (or any number), and from bit 40 on the
// device that it lies on.
constexpr int kDeviceAt = 40;

int device_in(std::uint64_t number) {
    return static_cast<int>(number >> kDeviceAt);
}
struct Mapping {
    std::uint64_t bytes;
    AllocationHandle handle;
};
std::map<AllocationHandle, Physical> g_physical;
std::map<Pointer, Mapping> g_mapped;

void drop_unused(AllocationHandle handle) {
    const auto found = g_physical.find(handle);
    if (found->second.handles > 0 || found->second.mappings > 0) return;
    give(found->second.bytes);
    g_physical.erase(found);
}

}  // namespace

MOCK_EXPORT Status cuMemAlloc_v2(Pointer* out, std::size_t bytes) {
    if (mock_gpu_host()->real_memory) return take_real(out, bytes);
    return allocate(out, bytes);
}
MOCK_EXPORT Status cuMemAllocManaged(Pointer* out, std::size_t bytes, unsigned int) {
    return allocate(out, bytes);
}
MOCK_EXPORT Status cuMemAllocPitch_v2(Pointer* out, std::size_t* pitch, std::size_t width,
                                      std::size_t height, unsigned int) {
    *pitch = (width + 511) / 512 * 512;
    return allocate(out, *pitch * height);
}
MOCK_EXPORT Status cuMemFree_v2(Pointer pointer) {
    if (give_real(pointer)) return kSuccess;
    return free_linear(pointer);
}
MOCK_EXPORT Status cuMemGetAddressRange_v2(Pointer* base, std::size_t* bytes, Pointer pointer) {
    if (const auto real = real_range(base, bytes, pointer)) return *real;
    const Lock lock(driver().mutex);
    const auto found = driver().linear.find(pointer);
    if (found == driver().linear.end()) return kInvalidValue;
    if (base != nullptr) *base = pointer;
    if (bytes != nullptr) *bytes = found->second.bytes;
    return kSuccess;
}
MOCK_EXPORT Status cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    if (current() == nullptr) return kInvalidContext;
    *total = device().capacity;
    *free = device().capacity - std::min(device().capacity, used_by_all(device()));
    return kSuccess;
}
MOCK_EXPORT Status cuDeviceTotalMem_v2(std::size_t* bytes, fabricshm::cuda::Device) {
    *bytes = device().capacity;
    return kSuccess;
}

MOCK_EXPORT Status cuArrayCreate_v2(Handle* out, const ArrayDescriptor* wanted) {
    return sized(out, taken_by(array_bytes(wanted->width, wanted->height, 0, wanted->format,
                                           wanted->channels)));
}
MOCK_EXPORT Status cuArray3DCreate_v2(Handle* out, const Array3dDescriptor* wanted) {
    return sized(out, taken_by(array_bytes(wanted->width, wanted->height, wanted->depth,
                                           wanted->format, wanted->channels)));
}
MOCK_EXPORT Status cuArrayDestroy(Handle array) {
    return free_sized(array);
}
MOCK_EXPORT Status cuMipmappedArrayCreate(Handle* out, const Array3dDescriptor* wanted,
                                          unsigned int levels) {
    std::uint64_t sum = 0;
    // Layers and faces are as many in each level; a third dimension is halved like the others.
    const bool is_layered = (wanted->flags & (kArrayLayered | kArrayCubemap)) != 0;
    for (unsigned int i = 0; i < levels; ++i) {
        const unsigned int halvings = is_layered ? 0 : i;
        sum += array_bytes(std::max<std::uint64_t>(1, wanted->width >> i),
                           std::max<std::uint64_t>(1, wanted->height >> i),
                           std::max<std::uint64_t>(1, wanted->depth >> halvings), wanted->format,
                           wanted->channels);
    }
    return sized(out, taken_by(sum));
}
MOCK_EXPORT Status cuMipmappedArrayDestroy(Handle array) {
    return free_sized(array);
}
MOCK_EXPORT Status cuImportExternalMemory(Handle* out, const ExternalMemory* memory) {
    return sized(out, taken_by(memory->bytes));
}
MOCK_EXPORT Status cuDestroyExternalMemory(Handle memory) {
    return free_sized(memory);
}

// Memory of another process: its handle carries the size; here it takes nothing more.
MOCK_EXPORT Status cuIpcGetMemHandle(IpcHandle* out, Pointer pointer) {
    if (const auto real = real_handle(out, pointer)) return *real;
    const Lock lock(driver().mutex);
    const auto found = driver().linear.find(pointer);
    if (found == driver().linear.end()) return kInvalidValue;
    *reinterpret_cast<std::uint64_t*>(out->bytes) = found->second.bytes;
    return kSuccess;
}
MOCK_EXPORT Status cuIpcOpenMemHandle_v2(Pointer* out, IpcHandle handle, unsigned int) {
    if (const auto real = open_real(out, handle)) return *real;
    const Lock lock(driver().mutex);
    const auto number = *reinterpret_cast<const std::uint64_t*>(handle.bytes);
    const std::uint64_t bytes = number & ((std::uint64_t{1} << kDeviceAt) - 1);
    // One that is open already is opened once more, at the same address.
    for (auto& [pointer, opened] : g_opened) {
        if (opened.bytes != number) continue;
        ++opened.count;
        *out = pointer;
        return kSuccess;
    }
    *out = new_address(bytes);
    static Pool elsewhere;  // memory that is not taken here
    driver().linear[*out] = {bytes, &elsewhere, device_in(number)};
    g_opened[*out] = {number, 1};
    return kSuccess;
}
MOCK_EXPORT Status cuIpcCloseMemHandle(Pointer pointer) {
    if (const auto real = close_real(pointer)) return *real;
    const Lock lock(driver().mutex);
    return g_opened.count(pointer) > 0 ? free_linear(pointer) : kInvalidValue;
}

MOCK_EXPORT Status cuMemCreate(AllocationHandle* out, std::size_t bytes, const AllocationProp* prop,
                               unsigned long long) {
    const Lock lock(driver().mutex);
    if (bytes % (2U << 20) != 0) return kInvalidValue;
    const bool on_device = prop->location.type == kOnDevice;
    if (on_device && !take(bytes)) return kOutOfMemory;
    *out = new_address(4096);
    g_physical[*out] = {on_device ? bytes : 0, 1, 0, prop->location};
    return kSuccess;
}
MOCK_EXPORT Status cuMemRelease(AllocationHandle handle) {
    const Lock lock(driver().mutex);
    const auto found = g_physical.find(handle);
    if (found == g_physical.end() || found->second.handles == 0) return kInvalidValue;
    --found->second.handles;
    drop_unused(handle);
    return kSuccess;
}
MOCK_EXPORT Status cuMemMap(Pointer address, std::size_t bytes, std::size_t,
                            AllocationHandle handle, unsigned long long) {
    const Lock lock(driver().mutex);
    const auto found = g_physical.find(handle);
    if (found == g_physical.end()) return kInvalidValue;
    ++found->second.mappings;
    g_mapped[address] = {bytes, handle};
    return kSuccess;
}
MOCK_EXPORT Status cuMemUnmap(Pointer address, std::size_t bytes) {
    const Lock lock(driver().mutex);
    auto at = g_mapped.lower_bound(address);
    if (at == g_mapped.end() || at->first != address) return kInvalidValue;
    while (at != g_mapped.end() && at->first < address + bytes) {
        const AllocationHandle handle = at->second.handle;
        at = g_mapped.erase(at);
        --g_physical[handle].mappings;
        drop_unused(handle);
    }
    return kSuccess;
}
MOCK_EXPORT Status cuMemRetainAllocationHandle(AllocationHandle* out, void* address) {
    const Lock lock(driver().mutex);
    const auto at = g_mapped.find(reinterpret_cast<Pointer>(address));
    if (at == g_mapped.end()) return kInvalidValue;
    *out = at->second.handle;
    ++g_physical[*out].handles;
    return kSuccess;
}
// The shareable handle is the allocation's own, or any number for memory of others: what is here
// already gets one more handle of the same number.
MOCK_EXPORT Status cuMemImportFromShareableHandle(AllocationHandle* out, void* shareable, int) {
    const Lock lock(driver().mutex);
    *out = reinterpret_cast<AllocationHandle>(shareable);
    const Location where{kOnDevice, *out < (std::uint64_t{1} << 44) ? device_in(*out) : 0};
    ++g_physical.try_emplace(*out, Physical{0, 0, 0, where}).first->second.handles;
    return kSuccess;
}
MOCK_EXPORT Status cuMemGetAllocationPropertiesFromHandle(AllocationProp* out,
                                                          AllocationHandle handle) {
    const Lock lock(driver().mutex);
    const auto found = g_physical.find(handle);
    if (found == g_physical.end()) return kInvalidValue;
    *out = {};
    out->location = found->second.where;
    return kSuccess;
}
MOCK_EXPORT Status cuPointerGetAttribute(void* out, int attribute, Pointer pointer) {
    const Lock lock(driver().mutex);
    if (const auto real = real_attribute(out, attribute, pointer)) return *real;
    if (attribute == kPointerDevicePointer) {
        if (reaches_host(pointer, *static_cast<Pointer*>(out))) return kSuccess;
        *static_cast<Pointer*>(out) = pointer;
        return driver().linear.count(pointer) != 0 ? kSuccess : kInvalidValue;
    }
    const auto found = driver().linear.find(pointer);
    if (found == driver().linear.end() || attribute != kPointerDevice) return kInvalidValue;
    *static_cast<int*>(out) = found->second.device;
    return kSuccess;
}

namespace {

Status allocate_async(Pointer* out, std::size_t bytes, Pool& pool, Handle stream) {
    const Lock lock(driver().mutex);
    if (const auto graph = driver().capturing.find(stream); graph != driver().capturing.end()) {
        auto node = std::make_unique<Node>();
        node->type = kMemAllocNode;
        node->alloc.bytes = bytes;
        *out = node->alloc.pointer = new_address(bytes);
        graph->second->nodes.push_back(std::move(node));
        return kSuccess;
    }
    return from_pool(out, bytes, pool);
}

}  // namespace

MOCK_EXPORT Status cuDeviceGetMemPool(Handle* out, fabricshm::cuda::Device) {
    *out = &driver().default_pool;
    return kSuccess;
}
MOCK_EXPORT Status cuDeviceGetDefaultMemPool(Handle* out, fabricshm::cuda::Device) {
    *out = &driver().default_pool;
    return kSuccess;
}
MOCK_EXPORT Status cuMemAllocAsync(Pointer* out, std::size_t bytes, Handle stream) {
    return allocate_async(out, bytes, driver().default_pool, stream);
}
MOCK_EXPORT Status cuMemAllocAsync_ptsz(Pointer* out, std::size_t bytes, Handle stream) {
    return allocate_async(out, bytes, driver().default_pool, stream);
}
MOCK_EXPORT Status cuMemAllocFromPoolAsync(Pointer* out, std::size_t bytes, Handle pool,
                                           Handle stream) {
    return allocate_async(out, bytes, *static_cast<Pool*>(pool), stream);
}
MOCK_EXPORT Status cuMemAllocFromPoolAsync_ptsz(Pointer* out, std::size_t bytes, Handle pool,
                                                Handle stream) {
    return allocate_async(out, bytes, *static_cast<Pool*>(pool), stream);
}
MOCK_EXPORT Status cuMemFreeAsync(Pointer pointer, Handle) {
    return free_linear(pointer);
}
MOCK_EXPORT Status cuMemFreeAsync_ptsz(Pointer pointer, Handle) {
    return free_linear(pointer);
}
MOCK_EXPORT Status cuMemPoolCreate(Handle* out, const PoolProps* wanted) {
    const Lock lock(driver().mutex);
    auto& ended = driver().ended_pools;
    Pool* pool = ended.empty() ? new Pool : ended.back();
    if (!ended.empty()) ended.pop_back();
    *pool = {};
    pool->on_device = wanted == nullptr || wanted->location.type == kOnDevice;
    driver().pools.insert(pool);
    *out = pool;
    return kSuccess;
}
MOCK_EXPORT Status cuMemPoolDestroy(Handle handle) {
    {
        const Lock lock(driver().mutex);
        auto* pool = static_cast<Pool*>(handle);
        if (driver().pools.erase(pool) == 0) return kInvalidValue;
        if (pool->on_device) give(pool->reserved);
        driver().ended_pools.push_back(pool);
    }
    hold_at("pool-ended");
    return kSuccess;
}
MOCK_EXPORT Status cuMemPoolTrimTo(Handle pool, std::size_t keep) {
    const Lock lock(driver().mutex);
    if (!may_do_unsafe()) return kCaptureUnsupported;
    trim(*static_cast<Pool*>(pool), keep);
    return kSuccess;
}
MOCK_EXPORT Status cuMemPoolSetAttribute(Handle pool, int attribute, void* value) {
    const Lock lock(driver().mutex);
    if (attribute != kPoolReleaseThreshold) return kSuccess;
    static_cast<Pool*>(pool)->threshold = *static_cast<std::uint64_t*>(value);
    return kSuccess;
}
MOCK_EXPORT Status cuMemPoolGetAttribute(Handle handle, int attribute, void* value) {
    const Lock lock(driver().mutex);
    const auto& pool = *static_cast<Pool*>(handle);
    auto& out = *static_cast<std::uint64_t*>(value);
    if (attribute == kPoolReservedCurrent) {
        out = pool.reserved;
    } else if (attribute == kPoolUsedCurrent) {
        out = pool.used;
    } else if (attribute == kPoolReleaseThreshold) {
        out = pool.threshold;
    } else {
        return kInvalidValue;
    }
    return kSuccess;
}
MOCK_EXPORT Status cuMemPoolImportFromShareableHandle(Handle* out, void*, int, unsigned long long) {
    return cuMemPoolCreate(out, nullptr);
}
MOCK_EXPORT Status cuMemPoolImportPointer(Pointer* out, Handle, void* data) {
    IpcHandle handle{};
    *reinterpret_cast<std::uint64_t*>(handle.bytes) = *static_cast<std::uint64_t*>(data);
    return cuIpcOpenMemHandle_v2(out, handle, 0);
}
MOCK_EXPORT Status cuStreamSynchronize(Handle stream) {
    wait_for_stream(stream);  // without the lock, which launches take
    const Lock lock(driver().mutex);
    trim(driver().default_pool, driver().default_pool.threshold);
    for (Pool* pool : driver().pools) trim(*pool, pool->threshold);
    return kSuccess;
}

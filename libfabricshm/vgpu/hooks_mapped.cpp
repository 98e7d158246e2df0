// Virtual memory management: physical memory with a handle, and addresses that it is mapped to. It
// is freed when its handles are released and nothing maps it any more.

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "libfabricshm/vgpu/charge_table.hpp"
#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

struct Physical {
    AllocationHandle handle = 0;
    Vgpu* vgpu = nullptr;
    std::uint64_t charged = 0;
    bool is_imported = false;  // its size is known only as far as it is mapped
    // The driver counts both and frees with the last of either; so do we.
    int handles = 0;
    int mappings = 0;
};
using PhysicalPtr = std::shared_ptr<Physical>;

struct Mapped {
    std::uint64_t bytes;
    PhysicalPtr memory;
};

// These calls are rare and slow, so one lock is held across the driver's part: what the tables say
// is then always what the driver did. Taken before the pools' locks and the ledger's.
struct Memory {
    std::mutex mutex;
    // Also what is only mapped any more: retained or imported again it has the same number.
    std::unordered_map<AllocationHandle, PhysicalPtr> by_handle;
    std::map<Pointer, Mapped> by_address;  // in order: ranges are unmapped, any address retained
};

Memory& memory() {
    static Memory& all = *new Memory;  // never destroyed, as the charge tables
    return all;
}

// Bytes set aside; given back unless taken.
class Reservation {
  public:
    Reservation() = default;
    ~Reservation() { give_back(); }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

    bool make(Vgpu& vgpu, std::uint64_t bytes) {
        give_back();
        if (!vgpu.reserve(bytes)) return false;
        vgpu_ = &vgpu;
        bytes_ = bytes;
        return true;
    }

    // Of more than enough the rest goes back.
    bool is_enough(Vgpu& vgpu, std::uint64_t bytes) {
        if (bytes == 0) give_back();
        if (bytes != 0 && (vgpu_ != &vgpu || bytes_ < bytes)) return false;
        if (vgpu_ != nullptr) vgpu_->roll_back(bytes_ - bytes);
        bytes_ = bytes;
        return true;
    }

    std::uint64_t take() {
        if (vgpu_ != nullptr) vgpu_->commit(bytes_);
        vgpu_ = nullptr;
        return std::exchange(bytes_, 0);
    }

  private:
    void give_back() {
        if (vgpu_ != nullptr) vgpu_->roll_back(bytes_);
        vgpu_ = nullptr;
        bytes_ = 0;
    }

    Vgpu* vgpu_ = nullptr;
    std::uint64_t bytes_ = 0;
};

void free_if_unused(Memory& all, const PhysicalPtr& physical) {
    if (physical->handles > 0 || physical->mappings > 0) return;
    physical->vgpu->release(physical->charged);
    physical->charged = 0;
    const auto found = all.by_handle.find(physical->handle);
    if (found != all.by_handle.end() && found->second == physical) all.by_handle.erase(found);
}

Status create_memory(Status (*own)(AllocationHandle*, std::size_t, const AllocationProp*,
                                   unsigned long long),
                     AllocationHandle* out, std::size_t bytes, const AllocationProp* wanted,
                     unsigned long long flags) {
    const bool on_device = wanted != nullptr && wanted->location.type == kOnDevice;
    Vgpu* vgpu = on_device ? vgpu_of(wanted->location.id) : nullptr;
    if (vgpu == nullptr) return own(out, bytes, wanted, flags);
    // As it is: the driver takes whole blocks only and refuses other sizes. Before the lock, since
    // it may wait for the ledger.
    if (!vgpu->reserve(bytes)) return kOutOfMemory;
    Memory& all = memory();
    const std::lock_guard lock(all.mutex);
    const Status status = own(out, bytes, wanted, flags);
    if (status != kSuccess) {
        vgpu->roll_back(bytes);
        return status;
    }
    all.by_handle[*out] = std::make_shared<Physical>(Physical{*out, vgpu, bytes, false, 1, 0});
    vgpu->commit(bytes);
    return status;
}

// The handle says where its memory lies, not how much it is. Memory of a peer GPU is mapped here
// and lies there: mapping it takes nothing of the current device. Where the driver does not say,
// the current device is where most will map it.
Vgpu* vgpu_of_handle(AllocationHandle handle) {
    if (!any_vgpu()) return nullptr;
    AllocationProp prop{};
    const auto ask = helpers().allocation_properties;
    if (ask == nullptr || ask(&prop, handle) != kSuccess) return current_vgpu();
    return prop.location.type == kOnDevice ? vgpu_of(prop.location.id) : nullptr;
}

Status import_memory(Status (*own)(AllocationHandle*, void*, int), AllocationHandle* out,
                     void* os_handle, int type) {
    Memory& all = memory();
    const std::lock_guard lock(all.mutex);
    const Status status = own(out, os_handle, type);
    if (status != kSuccess) return status;
    // Memory that is here already, imported before or made here, gets one more handle of the same
    // number where the driver answers so.
    if (const auto found = all.by_handle.find(*out); found != all.by_handle.end()) {
        ++found->second->handles;
        return status;
    }
    if (Vgpu* vgpu = vgpu_of_handle(*out); vgpu != nullptr) {
        all.by_handle[*out] = std::make_shared<Physical>(Physical{*out, vgpu, 0, true, 1, 0});
    }
    return status;
}

Status release_memory(Status (*own)(AllocationHandle), AllocationHandle handle) {
    Memory& all = memory();
    const std::lock_guard lock(all.mutex);
    const Status status = own(handle);
    const auto found = all.by_handle.find(handle);
    if (status != kSuccess || found == all.by_handle.end()) return status;
    const PhysicalPtr physical = found->second;
    // Retained and imported handles have the same number and are released one by one.
    --physical->handles;
    free_if_unused(all, physical);
    return status;
}

Status retain_memory(Status (*own)(AllocationHandle*, void*), AllocationHandle* out,
                     void* address) {
    Memory& all = memory();
    const std::lock_guard lock(all.mutex);
    const Status status = own(out, address);
    if (status != kSuccess) return status;
    // Any address within the mapping will do. Memory that is not charged is in no map: nothing to
    // count.
    auto at = all.by_address.upper_bound(reinterpret_cast<Pointer>(address));
    if (at == all.by_address.begin()) return status;
    --at;
    if (reinterpret_cast<Pointer>(address) - at->first >= at->second.bytes) return status;
    ++at->second.memory->handles;
    all.by_handle[*out] = at->second.memory;
    return status;
}

Status map_memory(Status (*own)(Pointer, std::size_t, std::size_t, AllocationHandle,
                                unsigned long long),
                  Pointer address, std::size_t bytes, std::size_t offset, AllocationHandle handle,
                  unsigned long long flags) {
    Memory& all = memory();
    std::unique_lock lock(all.mutex);
    // Memory of this process was charged whole when it was made. Of an imported one as much is
    // charged as was ever mapped up to; a second mapping of the same part takes nothing.
    const std::uint64_t end = std::uint64_t{offset} + bytes;
    Reservation reserved;
    PhysicalPtr physical;
    for (;;) {
        const auto found = all.by_handle.find(handle);
        if (found == all.by_handle.end()) return own(address, bytes, offset, handle, flags);
        physical = found->second;
        const std::uint64_t more =
            physical->is_imported && end > physical->charged ? end - physical->charged : 0;
        if (reserved.is_enough(*physical->vgpu, more)) break;
        // Without the lock, which releasing memory needs: it may wait for room. What was
        // true before is checked again.
        lock.unlock();
        if (!reserved.make(*physical->vgpu, more)) return kOutOfMemory;
        lock.lock();
    }
    const Status status = own(address, bytes, offset, handle, flags);
    if (status != kSuccess) return status;
    physical->charged += reserved.take();
    ++physical->mappings;
    all.by_address[address] = {bytes, physical};
    return status;
}

Status unmap_memory(Status (*own)(Pointer, std::size_t), Pointer address, std::size_t bytes) {
    Memory& all = memory();
    const std::lock_guard lock(all.mutex);
    const Status status = own(address, bytes);
    if (status != kSuccess) return status;
    // One call may take several mappings away, but none in part.
    auto at = all.by_address.lower_bound(address);
    while (at != all.by_address.end() && at->first - address < bytes) {
        const PhysicalPtr physical = at->second.memory;
        at = all.by_address.erase(at);
        --physical->mappings;
        free_if_unused(all, physical);
    }
    return status;
}

}  // namespace

FABRIC_MAPPED_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda

#include "libfabricshm/cuda/device_exports.hpp"

#include <sys/random.h>

#include <cstring>
#include <map>
#include <mutex>

#include "libfabricshm/base/reason.hpp"

namespace fabricshm::gpu {

namespace {

constexpr const char* kExporting = "export device memory";
constexpr Bytes kMaxBytes = kernels::cuda::kApart;  // that a place can say

// The ranges of this process's ranks, by token. A handle can't be opened in the process that made
// it, so ranks that are threads reach each other's memory where it is. What is found here is taken
// from here alone: a token is a word of another process as well.
struct LocalRange {
    ExportSeat seat;
    Handle context = nullptr;
    Pointer base = 0;
    Bytes bytes = 0;
};
struct LocalRanges {
    std::mutex mutex;
    std::map<std::uint64_t, LocalRange> ranges;
};
LocalRanges& local_ranges() {
    static auto& made = *new LocalRanges;  // as long as any group
    return made;
}

std::optional<LocalRange> find_local(std::uint64_t token, ExportSeat seat) {
    const std::lock_guard lock(local_ranges().mutex);
    const auto found = local_ranges().ranges.find(token);
    if (found == local_ranges().ranges.end()) return std::nullopt;
    const ExportSeat& has = found->second.seat;
    if (has.rank != seat.rank || has.group != seat.group) return std::nullopt;
    return found->second;
}

}  // namespace

Result<std::unique_ptr<DeviceExports>> DeviceExports::offer(
    std::shared_ptr<const DeviceContext> device, ExportSeat seat, const void* pointer,
    Bytes bytes) {
    std::unique_ptr<DeviceExports> made(new DeviceExports(std::move(device), seat));
    if (pointer == nullptr && bytes == 0) return made;
    if (pointer == nullptr || bytes == 0 || bytes >= kMaxBytes) {
        return explain({Errc::kInvalid, 0, kExporting},
                       "pointer is NULL, or bytes is 0 or too large");
    }
    const CurrentContext current(made->device_->driver(), made->device_->context());
    FABRIC_TRY_VOID(made->device_->driver().check(
        current.status(), "export device memory: make the context current"));
    FABRIC_TRY_VOID(made->describe(pointer, bytes));
    made->publish();
    return made;
}

Result<void> DeviceExports::describe(const void* pointer, Bytes bytes) {
    const Driver& driver = device_->driver();
    const auto at = reinterpret_cast<Pointer>(pointer);
    unsigned int type = 0;
    if (driver.pointer_attribute(&type, kPointerMemoryType, at) != cuda::kSuccess ||
        type != kMemoryOfDevice) {
        return explain({Errc::kInvalid, 0, kExporting}, "it is no memory of a device");
    }
    int ordinal = -1;
    FABRIC_TRY_VOID(driver.check(driver.pointer_attribute(&ordinal, cuda::kPointerDevice, at),
                                 "export device memory: its device"));
    if (ordinal != device_->ordinal()) {
        return explain({Errc::kInvalid, 0, kExporting},
                       "it is memory of device %d, the arena is on %d", ordinal,
                       device_->ordinal());
    }
    // Asked before the handle, so that the reason is said and not a number of the driver's.
    int has_handle = 0;
    if (driver.pointer_attribute(&has_handle, kPointerHasIpcHandle, at) != cuda::kSuccess ||
        has_handle == 0) {
        return explain({Errc::kUnsupported, 0, kExporting},
                       "it has no handle for other processes: that has memory of cuMemAlloc or "
                       "cudaMalloc, not of cuMemCreate (expandable segments), a pool "
                       "(cudaMallocAsync) or managed memory");
    }
    Pointer base = 0;
    std::size_t size = 0;
    FABRIC_TRY_VOID(driver.check(driver.address_range(&base, &size, at),
                                 "export device memory: its allocation"));
    offered_.offset = at - base;
    if (offered_.offset > size || bytes > size - offered_.offset) {
        return explain({Errc::kInvalid, 0, kExporting},
                       "it ends outside of its allocation of %zu bytes", size);
    }
    FABRIC_TRY_VOID(driver.check(driver.pointer_attribute(&own_id_, kPointerBufferId, at),
                                 "export device memory: its number"));
    FABRIC_TRY_VOID(driver.check(driver.ipc_handle(&offered_.handle, base),
                                 "export device memory: its handle"));
    offered_.device = device_->uuid();
    offered_.bytes = bytes;
    own_ = at;
    return {};
}

void DeviceExports::publish() {
    const std::lock_guard lock(local_ranges().mutex);
    do {
        // Without random numbers 0 goes on: such a rank is found by none of its process.
        if (::getrandom(&offered_.token, sizeof offered_.token, 0) !=
            static_cast<ssize_t>(sizeof offered_.token)) {
            offered_.token = 0;
            return;
        }
    } while (offered_.token == 0 || local_ranges().ranges.count(offered_.token) != 0);
    local_ranges().ranges[offered_.token] = {seat_, device_->context(), own_, offered_.bytes};
}

DeviceExports::~DeviceExports() {
    const std::lock_guard lock(local_ranges().mutex);
    local_ranges().ranges.erase(offered_.token);
}

// Whether this device reaches memory of the one that the offer names; it may be none that this
// process sees.
bool DeviceExports::reaches_device(const ExportOffer& offer) const noexcept {
    if (offer.device == device_->uuid()) return true;
    const Driver& driver = device_->driver();
    Device own = 0;
    if (driver.device_get(&own, device_->ordinal()) != cuda::kSuccess) return false;
    for (int ordinal = 0; ordinal < driver.devices; ++ordinal) {
        Device other = 0;
        cuda::Uuid uuid{};
        if (driver.device_get(&other, ordinal) != cuda::kSuccess ||
            driver.device_uuid(&uuid, other) != cuda::kSuccess ||
            std::memcmp(&uuid, offer.device.data(), sizeof uuid) != 0) {
            continue;
        }
        int can = 0;
        return driver.can_access_peer(&can, own, other) == cuda::kSuccess && can != 0;
    }
    return false;
}

// Whether the rank's memory is reached: fills in its window.
Result<bool> DeviceExports::open_one(const ExportOffer& offer, int rank) {
    auto& window = windows_[static_cast<std::size_t>(rank)];
    if (rank == seat_.rank) {
        window = {own_, offered_.bytes};
        return true;
    }
    if (const auto local = find_local(offer.token, {seat_.group, rank})) {
        if (local->context != device_->context()) return false;  // another device's
        window = {local->base, local->bytes};
        return true;
    }
    if (!reaches_device(offer)) return false;
    FABRIC_TRY(OpenedMemory memory, OpenedMemory::open(device_, offer.handle, rank));
    // By what this process's driver says, not by what the rank does.
    if (offer.offset > memory.bytes() || offer.bytes > memory.bytes() - offer.offset) {
        return explain({Errc::kCorrupt, rank, kExporting},
                       "rank %d exports more than its memory has", rank);
    }
    window = {memory.base() + offer.offset, offer.bytes};
    opened_[static_cast<std::size_t>(rank)] = std::make_unique<OpenedMemory>(std::move(memory));
    return true;
}

Result<std::uint32_t> DeviceExports::open(std::span<const ExportOffer> all) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank].bytes == 0) continue;
        FABRIC_TRY(const bool reached, open_one(all[rank], static_cast<int>(rank)));
        if (reached) kept_ |= std::uint32_t{1} << rank;
    }
    return kept_;
}

void DeviceExports::keep(std::uint32_t ranks) noexcept {
    kept_ &= ranks;
    for (std::size_t rank = 0; rank < windows_.size(); ++rank) {
        if ((kept_ >> rank & 1) != 0) continue;
        windows_[rank] = {};
        opened_[rank].reset();
    }
}

std::optional<Bytes> DeviceExports::offset_of(Pointer pointer, Bytes bytes) const noexcept {
    if ((kept_ >> seat_.rank & 1) == 0) return std::nullopt;
    if (pointer < own_ || pointer - own_ > offered_.bytes ||
        bytes > offered_.bytes - (pointer - own_)) {
        return std::nullopt;
    }
    // Freed, and allocated again at the same address: the peers still have the one of before.
    std::uint64_t id = 0;
    const CurrentContext current(device_->driver(), device_->context());
    const bool is_same =
        current.status() == cuda::kSuccess &&
        device_->driver().pointer_attribute(&id, kPointerBufferId, pointer) == cuda::kSuccess &&
        id == own_id_;
    return is_same ? std::optional(pointer - own_) : std::nullopt;
}

}  // namespace fabricshm::gpu

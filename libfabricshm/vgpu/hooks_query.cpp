// What programs ask: memory of the device, and addresses of the driver's functions.

#include <algorithm>
#include <limits>

#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

unsigned int in_32_bits(std::uint64_t bytes) noexcept {
    const std::uint64_t most = std::numeric_limits<unsigned int>::max();
    return static_cast<unsigned int>(std::min(bytes, most));
}

// The vGPU is the device: its quota is the total. Others on the same GPU may have left less.
void narrow(Vgpu& vgpu, std::uint64_t& free, std::uint64_t& total) {
    vgpu.follow_limits();
    const std::uint64_t granted = vgpu.granted();
    const std::uint64_t used = std::min(granted, vgpu.used());
    total = std::min(total, granted);
    free = std::min(free, granted - used);
}

Status memory_info(Status (*own)(std::size_t*, std::size_t*), std::size_t* free,
                   std::size_t* total) {
    const Status status = own(free, total);
    Vgpu* vgpu = status == kSuccess ? current_vgpu() : nullptr;
    if (vgpu == nullptr) return status;
    std::uint64_t free_bytes = *free;
    std::uint64_t total_bytes = *total;
    narrow(*vgpu, free_bytes, total_bytes);
    *free = free_bytes;
    *total = total_bytes;
    return status;
}

Status memory_info_32(Status (*own)(unsigned int*, unsigned int*), unsigned int* free,
                      unsigned int* total) {
    const Status status = own(free, total);
    Vgpu* vgpu = status == kSuccess ? current_vgpu() : nullptr;
    if (vgpu == nullptr) return status;
    std::uint64_t free_bytes = *free;
    std::uint64_t total_bytes = *total;
    narrow(*vgpu, free_bytes, total_bytes);
    *free = in_32_bits(free_bytes);
    *total = in_32_bits(total_bytes);
    return status;
}

// By device, not by context: programs ask this before they have one.
Status total_memory(Status (*own)(std::size_t*, Device), std::size_t* bytes, Device device) {
    const Status status = own(bytes, device);
    Vgpu* vgpu = status == kSuccess ? vgpu_of(device) : nullptr;
    if (vgpu != nullptr) *bytes = std::min<std::uint64_t>(*bytes, vgpu->granted());
    return status;
}

Status total_memory_32(Status (*own)(unsigned int*, Device), unsigned int* bytes, Device device) {
    const Status status = own(bytes, device);
    Vgpu* vgpu = status == kSuccess ? vgpu_of(device) : nullptr;
    if (vgpu != nullptr) *bytes = in_32_bits(std::min<std::uint64_t>(*bytes, vgpu->granted()));
    return status;
}

Status proc_address_1(Status (*own)(const char*, void**, int, std::uint64_t), const char* name,
                      void** out, int version, std::uint64_t flags) {
    const Status status = own(name, out, version, flags);
    // The driver first: only it knows what it has, and its answer says which form it means.
    if (status == kSuccess && out != nullptr) *out = stand_in(name, *out, version, flags);
    return status;
}

Status proc_address_2(Status (*own)(const char*, void**, int, std::uint64_t, int*),
                      const char* name, void** out, int version, std::uint64_t flags, int* found) {
    const Status status = own(name, out, version, flags, found);
    if (status == kSuccess && out != nullptr) *out = stand_in(name, *out, version, flags);
    return status;
}

// Tables of functions without names, for the vendor's own tools and runtime: passed through. In the
// table as all that the shim knows of; what comes past it is counted by settle_overhead().
Status export_table(Status (*own)(const void**, const Uuid*), const void** out, const Uuid* which) {
    return own(out, which);
}

}  // namespace

FABRIC_QUERY_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda

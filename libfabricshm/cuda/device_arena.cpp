#include "libfabricshm/cuda/device_arena.hpp"

namespace fabricshm::gpu {

namespace {

std::optional<Bytes> offset_in(std::uintptr_t base, Bytes size, std::uintptr_t at, Bytes bytes) {
    if (at < base || at - base > size || bytes > size - (at - base)) return std::nullopt;
    return at - base;
}

}  // namespace

Result<std::shared_ptr<DeviceArena>> DeviceArena::make(std::shared_ptr<DeviceContext> device,
                                                       std::byte* base, Bytes bytes, Bytes chunk) {
    FABRIC_TRY(Registration made,
               Registration::make(device->driver(), device->context(), base, bytes, chunk));
    return std::make_shared<DeviceArena>(std::move(device), base, std::move(made));
}

std::optional<Bytes> DeviceArena::offset_of(const void* pointer, Bytes bytes) const noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(pointer);
    const auto in_host =
        offset_in(reinterpret_cast<std::uintptr_t>(base_), this->bytes(), at, bytes);
    return in_host ? in_host : offset_in(base(), this->bytes(), at, bytes);
}

}  // namespace fabricshm::gpu

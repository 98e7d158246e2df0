// Linear memory, arrays, and memory of others that is opened here.

#include <algorithm>
#include <bit>

#include "libfabricshm/vgpu/charge_table.hpp"
#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/pools.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

// Rows of pitched memory and of arrays begin at multiples of this.
constexpr std::uint64_t kRow = 512;
constexpr std::uint64_t kTooLarge = ~std::uint64_t{0};

// a * b, or what no quota allows. An overflow must not become a small number that is granted: some
// drivers might find memory for it.
std::uint64_t product(std::uint64_t a, std::uint64_t b) noexcept {
    std::uint64_t result = 0;
    return __builtin_mul_overflow(a, b, &result) ? kTooLarge : result;
}

template <typename Call>
Status linear(Pointer* out, std::uint64_t bytes, Call call) {
    return charged(current_vgpu(), device_bytes(bytes), pointers(), call, [out] { return *out; });
}

Status allocate(Status (*own)(Pointer*, std::size_t), Pointer* out, std::size_t bytes) {
    return linear(out, bytes, [&] { return own(out, bytes); });
}

Status allocate_managed(Status (*own)(Pointer*, std::size_t, unsigned int), Pointer* out,
                        std::size_t bytes, unsigned int flags) {
    // All of it may come to the device at once.
    return linear(out, bytes, [&] { return own(out, bytes, flags); });
}

Status allocate_pitch(Status (*own)(Pointer*, std::size_t*, std::size_t, std::size_t, unsigned int),
                      Pointer* out, std::size_t* pitch, std::size_t width, std::size_t height,
                      unsigned int element) {
    const std::uint64_t row = width > kTooLarge - kRow ? width : round_up(width, kRow);
    return linear(out, product(row, height),
                  [&] { return own(out, pitch, width, height, element); });
}

// Forms from before CUDA 3.2, with addresses of 32 bits: other types, so that the tables get them
// apart.
Status allocate_32(Status (*own)(unsigned int*, unsigned int), unsigned int* out,
                   unsigned int bytes) {
    return charged(
        current_vgpu(), device_bytes(bytes), pointers(), [&] { return own(out, bytes); },
        [out] { return std::uint64_t{*out}; });
}

Status allocate_pitch_32(Status (*own)(unsigned int*, unsigned int*, unsigned int, unsigned int,
                                       unsigned int),
                         unsigned int* out, unsigned int* pitch, unsigned int width,
                         unsigned int height, unsigned int element) {
    const std::uint64_t bytes = product(round_up(std::uint64_t{width}, kRow), height);
    return charged(
        current_vgpu(), device_bytes(bytes), pointers(),
        [&] { return own(out, pitch, width, height, element); },
        [out] { return std::uint64_t{*out}; });
}

Status free_pointer(Status (*own)(Pointer), Pointer pointer) {
    // A program that only frees notices, too, that the quota shrinks, and trims its pools.
    if (Vgpu* vgpu = current_vgpu(); vgpu != nullptr) vgpu->follow_limits();
    return freed(pointers(), pointer, [&] { return own(pointer); });
}

Status free_32(Status (*own)(unsigned int), unsigned int pointer) {
    return freed(pointers(), pointer, [&] { return own(pointer); });
}

// Memory of another process counts here as well: it stays on the device as long as we hold it,
// whatever becomes of its maker.
Status open_ipc(Status (*own)(Pointer*, IpcHandle, unsigned int), Pointer* out, IpcHandle handle,
                unsigned int flags) {
    const Status status = own(out, handle, flags);
    if (status != kSuccess || charge_opened(*out)) return status;
    if (const auto close = real<Status (*)(Pointer)>(Entry::cuIpcCloseMemHandle)) close(*out);
    *out = 0;
    return kOutOfMemory;
}

// Whether it is on this device at all the caller does not say; memory of a graphics API mostly is.
Status import_external(Status (*own)(Handle*, const ExternalMemory*), Handle* out,
                       const ExternalMemory* memory) {
    if (memory == nullptr) return own(out, memory);
    return charged(
        current_vgpu(), device_bytes(memory->bytes), handles(), [&] { return own(out, memory); },
        [out] { return key_of(*out); });
}

// CUarray_format by its values: the named constants would be a longer list than what is made of
// them.
std::uint64_t texel_bytes(int format, unsigned int channels) noexcept {
    switch (format) {
        case 0x01:  // 8 bits
        case 0x08:
            return std::uint64_t{1} * channels;
        case 0x02:  // 16 bits, half
        case 0x09:
        case 0x10:
            return std::uint64_t{2} * channels;
        case 0x03:  // 32 bits, float
        case 0x0a:
        case 0x20:
            return std::uint64_t{4} * channels;
        default:  // compressed and planar formats: at most this, and often much less
            return 16;
    }
}

// How the driver lays texels out is not documented: rows of 512 bytes are what it was assumed to
// take. No more than 32 levels: each halves a side, and the driver makes none beyond one texel.
std::uint64_t array_bytes(const Array3dDescriptor& array, unsigned int levels) noexcept {
    const bool has_layers = (array.flags & (kArrayLayered | kArrayCubemap)) != 0;
    std::uint64_t sum = 0;
    for (unsigned int level = 0; level < std::min(levels, 32U); ++level) {
        const auto side = [level](std::size_t length) {
            return std::max<std::uint64_t>(1, std::uint64_t{length} >> level);
        };
        const std::uint64_t row =
            product(side(array.width), texel_bytes(array.format, array.channels));
        // Layers and the faces of a cube are as many in each level; only a third dimension shrinks.
        const std::uint64_t depth =
            has_layers ? std::max<std::uint64_t>(1, array.depth) : side(array.depth);
        const std::uint64_t rows = product(side(array.height), depth);
        const std::uint64_t bytes =
            product(row > kTooLarge - kRow ? row : round_up(row, kRow), rows);
        if (bytes > kTooLarge - sum) return kTooLarge;
        sum += bytes;
    }
    return sum;
}

// Sparse and deferred arrays have no memory before some is mapped to them.
bool has_memory(const Array3dDescriptor& array) noexcept {
    return (array.flags & (kArraySparse | kArrayDeferred)) == 0;
}

template <typename Call>
Status array(Handle* out, const Array3dDescriptor& array, unsigned int levels, Call call) {
    Vgpu* vgpu = has_memory(array) ? current_vgpu() : nullptr;
    return charged(vgpu, device_bytes(array_bytes(array, levels)), handles(), call,
                   [out] { return key_of(*out); });
}

Status create_array(Status (*own)(Handle*, const ArrayDescriptor*), Handle* out,
                    const ArrayDescriptor* wanted) {
    if (wanted == nullptr) return own(out, wanted);
    const Array3dDescriptor same{wanted->width,  wanted->height,   0,
                                 wanted->format, wanted->channels, 0};
    return array(out, same, 1, [&] { return own(out, wanted); });
}

Status create_array_3d(Status (*own)(Handle*, const Array3dDescriptor*), Handle* out,
                       const Array3dDescriptor* wanted) {
    if (wanted == nullptr) return own(out, wanted);
    return array(out, *wanted, 1, [&] { return own(out, wanted); });
}

// The descriptors from before CUDA 3.2 have sizes of 32 bits, and so all fields are words: width,
// height, (depth,) format, channels (, flags).
Status create_array_32(Status (*own)(Handle*, const void*), Handle* out, const void* wanted) {
    if (wanted == nullptr) return own(out, wanted);
    const auto* words = static_cast<const unsigned int*>(wanted);
    const Array3dDescriptor same{words[0], words[1], 0, static_cast<int>(words[2]), words[3], 0};
    return array(out, same, 1, [&] { return own(out, wanted); });
}

Status create_array_3d_32(Status (*own)(Handle*, const void*), Handle* out, const void* wanted) {
    if (wanted == nullptr) return own(out, wanted);
    const auto* words = static_cast<const unsigned int*>(wanted);
    const Array3dDescriptor same{words[0], words[1], words[2], static_cast<int>(words[3]),
                                 words[4], words[5]};
    return array(out, same, 1, [&] { return own(out, wanted); });
}

Status create_mipmap(Status (*own)(Handle*, const Array3dDescriptor*, unsigned int), Handle* out,
                     const Array3dDescriptor* wanted, unsigned int levels) {
    if (wanted == nullptr) return own(out, wanted, levels);
    return array(out, *wanted, levels, [&] { return own(out, wanted, levels); });
}

// Of arrays, mipmaps and external memory alike: one table has them all.
Status destroy_handle(Status (*own)(Handle), Handle handle) {
    return freed(handles(), key_of(handle), [&] { return own(handle); });
}

}  // namespace

FABRIC_MEMORY_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda

// What an optimiser step needs of elements that are taken one by one: all of the scalar set, and
// of the others what is left behind the last register. The file that includes it says how one f16
// is widened and narrowed (Half::widen(), Half::narrow()).

#pragma once

namespace kernels {
namespace {

#define FABRIC_TILE_INLINE [[gnu::always_inline]] inline

struct OneLane {
    using Value = float;
    static constexpr std::size_t kLanes = 1;

    FABRIC_TILE_INLINE static Value load(const float* from) { return *from; }
    FABRIC_TILE_INLINE static void store(float* to, Value value) { *to = value; }
    FABRIC_TILE_INLINE static Value root(Value value) { return __builtin_sqrtf(value); }

    template <DType kType>
    FABRIC_TILE_INLINE static Value widen(const void* from, std::size_t at) {
        if constexpr (kType == DType::kF32) {
            return static_cast<const float*>(from)[at];
        } else {
            const std::uint16_t half = static_cast<const std::uint16_t*>(from)[at];
            if constexpr (kType == DType::kF16) return Half::widen(half);
            const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
            Value value;
            __builtin_memcpy(&value, &bits, sizeof value);
            return value;
        }
    }
    FABRIC_TILE_INLINE static void store_bf16(std::uint16_t* to, Value value) {
        std::uint32_t bits;
        __builtin_memcpy(&bits, &value, sizeof bits);
        const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        *to = static_cast<std::uint16_t>(value == value ? rounded : kTileNanBF16);
    }
    FABRIC_TILE_INLINE static void store_f16(std::uint16_t* to, Value value) {
        *to = value == value ? Half::narrow(value) : kTileNanF16;
    }
};

}  // namespace
}  // namespace kernels

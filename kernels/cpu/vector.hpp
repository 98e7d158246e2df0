// What the vector kernels share. This file and all *_vector.hpp are compiled once per instruction
// set: in a .cpp that first includes what they need from elsewhere, then an isa_*.hpp, which turns
// the instruction set on (#pragma GCC target) and says
//   Isa::kBytes                      the width of a register
//   Isa::stream(to, value)           store past the cache; `to` is aligned to the width
//   Isa::widen_f16(from)             half a register's worth of f16 as a register of floats
//   Isa::narrow_f16(first, second)   the reverse, to nearest even, of two registers
//   Isa::root(value)                 the square roots of a register of floats
// All of it sits in an unnamed namespace: with a shared name the linker would keep one copy of each
// function for all files, and a plain processor could meet the AVX-512 one.

#pragma once

namespace kernels {
namespace {

#define FABRIC_INLINE [[gnu::always_inline]] inline

template <class T>
struct VectorOf {
    typedef T type __attribute__((vector_size(Isa::kBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

// Streaming stores fill whole lines one after the other only if each starts at a line.
constexpr std::size_t kLine = 64;
constexpr std::size_t kWidth = Isa::kBytes;

template <class V>
FABRIC_INLINE V load_vector(const char* from) {
    V result;
    __builtin_memcpy(&result, from, sizeof result);  // one unaligned load
    return result;
}

template <class V>
FABRIC_INLINE void store_vector(char* to, V value) {
    __builtin_memcpy(to, &value, sizeof value);  // one unaligned store
}

// Bytes to do one by one before `destination` is at the start of a line, in whole elements.
FABRIC_INLINE std::size_t head_bytes(const void* destination, std::size_t element,
                                     std::size_t bytes) {
    const std::size_t to_line = -reinterpret_cast<std::uintptr_t>(destination) % kLine;
    if (to_line % element != 0) return 0;
    return to_line < bytes ? to_line : bytes;
}

FABRIC_INLINE bool at_line(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % kLine == 0;
}

}  // namespace
}  // namespace kernels

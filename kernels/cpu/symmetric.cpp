#include "kernels/symmetric.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kernels {

namespace {

// Of a block both the rows that are read and the rows that are written stay in the first-level
// cache: 2 x 32 lines.
constexpr std::size_t kBlock = 32;

// Elements only move, so words of their size do; through memcpy, since they are not words.
template <typename Word>
void mirror(char* full, std::size_t n) noexcept {
    const auto at = [full, n](std::size_t i, std::size_t j) {
        return full + (i * n + j) * sizeof(Word);
    };
    for (std::size_t rows = 0; rows < n; rows += kBlock) {
        const std::size_t rows_end = std::min(rows + kBlock, n);
        for (std::size_t columns = 0; columns <= rows; columns += kBlock) {
            for (std::size_t i = rows; i < rows_end; ++i) {
                const std::size_t end = std::min(columns + kBlock, i);
                for (std::size_t j = columns; j < end; ++j) {
                    Word word;
                    std::memcpy(&word, at(i, j), sizeof word);
                    std::memcpy(at(j, i), &word, sizeof word);
                }
            }
        }
    }
}

std::size_t size_of_checked(DType type) noexcept {
    if (type != DType::kF32 && type != DType::kF64) std::abort();
    return size_of(type);
}

}  // namespace

void pack_lower(DType type, const void* full, std::size_t n, void* packed) noexcept {
    const std::size_t element = size_of_checked(type);
    const char* row = static_cast<const char*>(full);
    char* to = static_cast<char*>(packed);
    for (std::size_t i = 0; i < n; ++i, row += n * element) {
        std::memcpy(to, row, (i + 1) * element);
        to += (i + 1) * element;
    }
}

void unpack_symmetric(DType type, const void* packed, std::size_t n, void* full) noexcept {
    const std::size_t element = size_of_checked(type);
    const char* from = static_cast<const char*>(packed);
    char* row = static_cast<char*>(full);
    for (std::size_t i = 0; i < n; ++i, row += n * element) {
        std::memcpy(row, from, (i + 1) * element);
        from += (i + 1) * element;
    }
    mirror_lower(type, full, n);
}

void mirror_lower(DType type, void* full, std::size_t n) noexcept {
    char* bytes = static_cast<char*>(full);
    size_of_checked(type) == 4 ? mirror<std::uint32_t>(bytes, n) : mirror<std::uint64_t>(bytes, n);
}

}  // namespace kernels

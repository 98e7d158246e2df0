#include "kernels/symmetric.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kernels {

namespace {

// A block and its mirror image stay in the first-level cache; of rows of the matrix that would not
// be certain, since rows whose distance is a power of two compete for the same few lines.
constexpr std::size_t kBlock = 32;

struct Rows {
    const char* row;   // row i, of which elements 0 .. i are there
    std::size_t step;  // bytes to the next row,
    std::size_t grow;  // and by how much that grows from row to row
};

// Rows [first, end) of the lower triangle as columns of `full`. Elements only move, so words of
// their size do; through memcpy, since they are not words.
template <typename Word>
void mirror_rows(Rows from, std::size_t first, std::size_t end, char* full,
                 std::size_t n) noexcept {
    for (std::size_t columns = 0; columns < end; columns += kBlock) {
        const std::size_t width = std::min(kBlock, end - columns);
        Word turned[kBlock][kBlock];
        Rows rows = from;
        for (std::size_t i = first; i < end; ++i) {
            if (i >= columns) {
                Word read[kBlock];
                const std::size_t count = std::min(width, i + 1 - columns);
                std::memcpy(read, rows.row + columns * sizeof(Word), count * sizeof(Word));
                for (std::size_t j = 0; j < count; ++j) turned[j][i - first] = read[j];
            }
            rows.row += rows.step;
            rows.step += rows.grow;
        }
        for (std::size_t j = 0; j < width; ++j) {
            // What lies above the diagonal; on it is the triangle's own.
            const std::size_t begin = std::max(first, columns + j + 1);
            if (begin >= end) continue;
            std::memcpy(full + ((columns + j) * n + begin) * sizeof(Word),
                        &turned[j][begin - first], (end - begin) * sizeof(Word));
        }
    }
}

template <typename Word>
void mirror(char* full, std::size_t n) noexcept {
    for (std::size_t first = 0; first < n; first += kBlock) {
        const std::size_t end = std::min(first + kBlock, n);
        const Rows rows{full + first * n * sizeof(Word), n * sizeof(Word), 0};
        mirror_rows<Word>(rows, first, end, full, n);
    }
}

// The packed rows of a block are read twice, the second time from a cache.
template <typename Word>
void unpack(const char* packed, char* full, std::size_t n) noexcept {
    for (std::size_t first = 0; first < n; first += kBlock) {
        const std::size_t end = std::min(first + kBlock, n);
        const Rows rows{packed, (first + 1) * sizeof(Word), sizeof(Word)};
        for (std::size_t i = first; i < end; ++i) {
            std::memcpy(full + i * n * sizeof(Word), packed, (i + 1) * sizeof(Word));
            packed += (i + 1) * sizeof(Word);
        }
        mirror_rows<Word>(rows, first, end, full, n);
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
    const char* from = static_cast<const char*>(packed);
    char* to = static_cast<char*>(full);
    size_of_checked(type) == 4 ? unpack<std::uint32_t>(from, to, n)
                               : unpack<std::uint64_t>(from, to, n);
}

void mirror_lower(DType type, void* full, std::size_t n) noexcept {
    char* bytes = static_cast<char*>(full);
    size_of_checked(type) == 4 ? mirror<std::uint32_t>(bytes, n) : mirror<std::uint64_t>(bytes, n);
}

}  // namespace kernels

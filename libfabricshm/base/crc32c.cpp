#include "libfabricshm/base/crc32c.hpp"

#include <array>
#include <cstring>

namespace fabricshm {

namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t value = byte;
        // The polynomial in reversed bit order, since bytes go in lowest bit first.
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) * 0x82f63b78U);
        table[byte] = value;
    }
    return table;
}

constexpr auto kTable = make_table();

using Update = std::uint32_t (*)(const unsigned char* at, std::size_t bytes, std::uint32_t value);

std::uint32_t by_table(const unsigned char* at, std::size_t bytes, std::uint32_t value) {
    for (std::size_t i = 0; i < bytes; ++i) value = (value >> 8) ^ kTable[(value ^ at[i]) & 0xff];
    return value;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const unsigned char* at,
                                                               std::size_t bytes,
                                                               std::uint32_t value) {
    std::uint64_t wide = value;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, at, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    return by_table(at, bytes, static_cast<std::uint32_t>(wide));
}
#endif

Update choose_update() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return by_instruction;
#endif
    return by_table;
}

// A linear map of 32 bits: what becomes of each single bit.
using Map = std::array<std::uint32_t, 32>;

std::uint32_t applied(const Map& map, std::uint32_t value) {
    std::uint32_t sum = 0;
    for (std::size_t bit = 0; value != 0; value >>= 1, ++bit) sum ^= (value & 1) * map[bit];
    return sum;
}

Map squared(const Map& map) {
    Map twice{};
    for (std::size_t bit = 0; bit < twice.size(); ++bit) twice[bit] = applied(map, map[bit]);
    return twice;
}

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t previous) noexcept {
    static const Update update = choose_update();
    return ~update(static_cast<const unsigned char*>(data), bytes, ~previous);
}

// The first one runs on over as many zero bytes as the second piece has; a checksum is linear but
// for its ends, which cancel out.
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second,
                            std::uint64_t bytes) noexcept {
    Map zeros{};  // of one byte, then of 2, 4, 8, ...
    for (std::uint32_t bit = 0; bit < 32; ++bit) {
        const std::uint32_t value = std::uint32_t{1} << bit;
        zeros[bit] = (value >> 8) ^ kTable[value & 0xff];
    }
    for (; bytes != 0; bytes >>= 1) {
        if ((bytes & 1) != 0) first = applied(zeros, first);
        zeros = squared(zeros);
    }
    return first ^ second;
}

}  // namespace fabricshm

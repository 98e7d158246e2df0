#include "libfabricshm/base/crc32c.hpp"

#include <array>

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

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t previous) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    std::uint32_t value = ~previous;
    for (std::size_t i = 0; i < bytes; ++i) value = (value >> 8) ^ kTable[(value ^ at[i]) & 0xff];
    return ~value;
}

}  // namespace fabricshm

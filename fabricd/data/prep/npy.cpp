#include "fabricd/data/prep/npy.hpp"

#include <cstdio>
#include <cstring>
#include <string>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

// Format 1.0: a magic number, the length of what follows, a dictionary of Python, blanks, a
// newline.
void write_npy_header(const NpyShape& shape, std::span<std::byte> file) noexcept {
    constexpr std::size_t kBefore = 10;
    char sides[64] = "";
    for (const std::uint64_t side : shape.sides) {
        const std::size_t length = std::strlen(sides);
        std::snprintf(sides + length, sizeof sides - length, "%llu, ",
                      static_cast<unsigned long long>(side));
    }
    char text[kNpyHeader - kBefore + 1];
    const int length =
        std::snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                      shape.type, sides);
    FABRIC_CHECK(length > 0 && static_cast<std::size_t>(length) < sizeof text - 1);
    FABRIC_CHECK(file.size() >= kNpyHeader);
    std::memset(text + length, ' ', sizeof text - 1 - static_cast<std::size_t>(length));
    text[sizeof text - 2] = '\n';
    const unsigned char before[kBefore] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, kNpyHeader - kBefore, 0};
    std::memcpy(file.data(), before, kBefore);
    std::memcpy(file.data() + kBefore, text, kNpyHeader - kBefore);
}

}  // namespace fabricd

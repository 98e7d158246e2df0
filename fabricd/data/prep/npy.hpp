// Files that numpy.load() reads: a header of a fixed size, then the elements.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fabricd {

/// Of every header, so that sizes are known before contents are and elements begin at a line.
inline constexpr std::size_t kNpyHeader = 128;

/// What follows it: "|u1" or "<i4".
struct NpyShape {
    const char* type = "|u1";
    std::vector<std::uint64_t> sides;  // three at most
};

/// Writes the header to the start of `file`, which has kNpyHeader bytes at least.
void write_npy_header(const NpyShape& shape, std::span<std::byte> file) noexcept;

}  // namespace fabricd

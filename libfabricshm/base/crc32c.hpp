// CRC-32C (Castagnoli), for what is stored and read back later: catalogues, journals, snapshots.

#pragma once

#include <cstddef>
#include <cstdint>

namespace fabricshm {

/// The checksum of `bytes` bytes at `data`; `previous` continues an earlier one. Pure. Several
/// bytes per nanosecond where the processor has an instruction for it, else by table.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t previous = 0) noexcept;

/// The checksum of two pieces one after the other, from theirs; `bytes` of the second. Pure.
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second,
                            std::uint64_t bytes) noexcept;

}  // namespace fabricshm

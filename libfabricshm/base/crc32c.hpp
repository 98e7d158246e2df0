// CRC-32C (Castagnoli), for what is stored and read back later: catalogues and journals.

#pragma once

#include <cstddef>
#include <cstdint>

namespace fabricshm {

/// The checksum of `bytes` bytes at `data`; `previous` continues an earlier one. Pure.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t previous = 0) noexcept;

}  // namespace fabricshm

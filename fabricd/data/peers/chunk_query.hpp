// How one host asks another for a chunk: GET /v1/chunk?path=...&version=...&number=...

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fabricd/data/peers/rendezvous.hpp"

namespace fabricd {

inline constexpr Bytes kPeerChunk = 4 * fabricshm::kMiB;
/// The answer's header with the CRC-32C of the chunk, as 8 hexadecimal digits.
inline constexpr const char* kPeerChecksum = "x-fabric-crc32c";

/// A version as text: 64 hexadecimal digits. It is the ETag of the answer, too.
std::string version_text(const FileVersion& version);

std::string chunk_target(const ChunkName& chunk);
/// Of what another host has sent. nullopt: it asks for no chunk.
std::optional<ChunkName> parse_chunk_target(std::string_view target);

std::string checksum_text(std::uint32_t checksum);
std::optional<std::uint32_t> parse_checksum(std::string_view text) noexcept;

}  // namespace fabricd

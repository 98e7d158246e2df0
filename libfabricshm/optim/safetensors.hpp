// The header of a safetensors file: eight bytes of length, JSON, then the tensors' bytes without
// gaps. Pure. docs/snapshots.md has what ours say beyond the format.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricshm {

struct StoredTensor {
    std::string name;
    std::string dtype = "F32";
    std::vector<std::int64_t> shape;
    Bytes begin = 0;  // from the end of the header
    Bytes end = 0;

    Bytes bytes() const noexcept { return end - begin; }
};

struct StoredHeader {
    std::map<std::string, std::string> metadata;
    std::vector<StoredTensor> tensors;
};

/// The first bytes of the file: as long as any header that differs in the values of checksums
/// alone, and whole blocks, so that the tensors begin on one. Adds the header's own checksum.
std::string format_header(const StoredHeader& header);

/// What format_header() rounds up to.
inline constexpr Bytes kHeaderUnit = 4096;
/// A longer header is not read, by other readers either.
inline constexpr Bytes kMaxHeader = 100'000'000;

/// Of the JSON between the length and the tensors. kCorrupt: it is no such header, its own checksum
/// does not hold (ours have one), or its tensors leave gaps. Anything may be in `json`.
Result<StoredHeader> parse_header(std::string_view json);

/// Eight hexadecimal digits.
std::string checksum_text(std::uint32_t checksum);

/// "text" as JSON has it, with its quotes.
std::string json_text(std::string_view text);

}  // namespace fabricshm

// 256 bits of a text, by which two versions of what is derived from it differ. Not a signature: no
// protection against a maker of texts that wants two to be alike.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fabricd {

using Fingerprint = std::array<std::uint64_t, 4>;

Fingerprint fingerprint_of(std::string_view text) noexcept;

/// As 64 hexadecimal digits.
std::string text_of(const Fingerprint& fingerprint);

}  // namespace fabricd

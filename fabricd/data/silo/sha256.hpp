// SHA-256, as hexadecimal digits.

#pragma once

#include <string>
#include <string_view>

namespace fabricd {

std::string sha256_text(std::string_view bytes);

}  // namespace fabricd

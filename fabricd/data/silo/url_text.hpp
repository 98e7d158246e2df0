// Text as a part of a URL.

#pragma once

#include <string>
#include <string_view>

namespace fabricd {

/// All but letters, digits and "-._~" as %NN. A '/' stays where `keep_slash`.
std::string url_encoded(std::string_view text, bool keep_slash);
/// Its reverse, with '+' as a space. False: a '%' without two digits.
bool url_decode(std::string_view text, std::string& decoded);

}  // namespace fabricd

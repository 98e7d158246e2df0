// JSON text from what fabricctl shows.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fabricd {

// Fields stay in the order in which they are written.
using Json = nlohmann::ordered_json;

/// One line. What is no UTF-8 is replaced: an exception here would end the program.
/// For a command line, which is shown again, may hold any bytes.
inline std::string one_line(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fabricd

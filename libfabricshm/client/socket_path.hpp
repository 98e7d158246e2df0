// Where fabricd listens.

#pragma once

#include <string>
#include <vector>

namespace fabricshm {

/// The paths to try, in this order: `wanted` alone when it is not empty, $FABRIC_SOCKET alone when
/// it is set, otherwise $XDG_RUNTIME_DIR/fabricd/attach.sock and /run/fabricd/attach.sock.
std::vector<std::string> socket_paths(const std::string& wanted);

/// The same of the data service: `wanted`, $FABRIC_DATA_SOCKET, or data.sock in those folders.
std::vector<std::string> data_socket_paths(const std::string& wanted);

/// "a or b", for error texts.
std::string joined(const std::vector<std::string>& paths);

/// The name of the running program, for labels.
std::string program_name();

}  // namespace fabricshm

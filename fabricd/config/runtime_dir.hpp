// Where the sockets are, and that no other user can put theirs there first.

#pragma once

#include <string>
#include <vector>

#include "fabricd/config/config.hpp"

namespace fabricd {

/// The runtime folder when none is configured: $RUNTIME_DIRECTORY (systemd sets it),
/// $XDG_RUNTIME_DIR/fabricd, /run/fabricd for root, else /tmp/fabricd-UID.
std::string default_runtime_dir();

/// The configuration file when none is named: $XDG_CONFIG_HOME/fabricd/fabricd.toml (or ~/.config)
/// for people, /etc/fabricd/fabricd.toml for root and the system service; "" when it is not there.
std::string default_config_file();

/// Fills in the paths that the configuration leaves to us.
/// Afterwards every path of the sockets and of the state is set and absolute.
void resolve_paths(Config& config);

/// Makes `path` when it is missing, then insists that it is a folder (no link) of this user that
/// no other user can write to: in a shared /tmp another one may have been there first. With
/// `others_enter` a new folder is 0755 instead of 0700.
ErrorMessage prepare_runtime_dir(const std::string& path, bool others_enter);

/// Where fabricctl looks for the admin socket when none is named, first match wins.
std::vector<std::string> admin_socket_candidates();

}  // namespace fabricd

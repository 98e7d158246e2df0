// The command line of fabricd-device-plugin.

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// What pods ask for, and so what the examples in packaging/kubernetes/ name.
inline constexpr const char* kPoolResource = "fabricshm.dev/pool-gib";

struct PluginOptions {
    std::string folder = "/var/lib/kubelet/device-plugins";  // of the kubelet's socket and of ours
    std::string socket = "/run/fabricd/attach.sock";  // its folder is mounted into containers
    std::string admin_socket = "/run/fabricd/admin.sock";
    fabricshm::Bytes reserve = 0;
    fabricshm::Duration poll = std::chrono::seconds(1);  // of the daemon and of both sockets
    bool wants_help = false;
    bool wants_version = false;

    std::string kubelet_socket() const { return folder + "/kubelet.sock"; }
    std::string endpoint_path() const { return folder + "/" + kEndpoint; }
    /// What containers get.
    std::string mounted_folder() const { return socket.substr(0, socket.rfind('/')); }

    static constexpr const char* kEndpoint = "fabricshm-pool-gib.sock";
};

/// `words` without the program's name. kInvalid, with one line for its user, for anything that is
/// not as `--help` says.
fabricshm::Result<PluginOptions> parse_plugin_options(const std::vector<std::string>& words);

/// What --help prints.
extern const char* const kPluginHelp;

}  // namespace fabricd

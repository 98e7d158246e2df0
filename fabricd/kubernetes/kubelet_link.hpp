// The kubelet's side of the plugin: which socket it has, and the registration there.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// Which socket lies at a path. A kubelet that starts makes its own again: another identity.
struct SocketIdentity {
    dev_t device = 0;
    ino_t inode = 0;
    std::int64_t changed_ns = 0;  // inodes are used again at once

    bool operator==(const SocketIdentity&) const = default;
};

/// nullopt: no socket is there.
std::optional<SocketIdentity> socket_identity(const std::string& path);

/// Registers the plugin that serves `endpoint`, a name in the folder of `kubelet_socket`. Three
/// seconds at most. kDaemon: no kubelet answers; kInvalid: it refuses, and its words are the text.
fabricshm::Result<void> register_plugin(const std::string& kubelet_socket,
                                        const std::string& endpoint);

}  // namespace fabricd

// PluginSocket: where the kubelet reaches the plugin.

#pragma once

#include <memory>
#include <string>

#include "libfabricshm/base/result.hpp"

namespace grpc {
class Server;
}

namespace fabricd {

/// A listening socket of mode 0600 with a thread that hands its connections to a gRPC server.
/// Accepting is never behind anything else: a kubelet may connect while it answers Register.
class PluginSocket {
  public:
    /// Replaces a socket that is there: the caller holds the folder (hold_folder()). The umask is
    /// 0177, from before there were threads. kExists: what is there is no socket.
    static fabricshm::Result<PluginSocket> open(const std::string& path, grpc::Server& server);

    PluginSocket(PluginSocket&&) noexcept;
    PluginSocket& operator=(PluginSocket&&) noexcept;
    /// Removes the socket, unless another one lies there. Connections go on.
    ~PluginSocket();

    /// False once it was removed or replaced: a kubelet that starts removes all sockets of its
    /// folder.
    bool is_in_place() const;

  private:
    struct Impl;
    explicit PluginSocket(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd

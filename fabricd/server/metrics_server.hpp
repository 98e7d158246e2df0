// MetricsServer: what Prometheus reads, over HTTP on a unix socket or on the loopback interface.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "libfabricshm/base/result.hpp"

namespace fabricd {

struct MetricsAddress {
    std::string socket_path;  // absolute; mode 0600. "": none
    std::uint16_t port = 0;   // of 127.0.0.1, and never of another interface; 0: none
};

/// One thread that serves all: GET /metrics, and a refusal of everything else. A client has two
/// seconds in all, and one that is silent or slow holds up no other.
class MetricsServer {
  public:
    /// Makes the text of a page; called on the server's thread.
    using Page = std::function<std::string()>;

    /// kBusy when another process serves that socket or port, kInvalid for a path that is too long.
    /// With an empty address nothing is served.
    static fabricshm::Result<std::unique_ptr<MetricsServer>> start(const MetricsAddress& address,
                                                                   Page page);

    /// Removes the socket.
    ~MetricsServer();
    MetricsServer(const MetricsServer&) = delete;
    MetricsServer& operator=(const MetricsServer&) = delete;

  private:
    struct Impl;
    explicit MetricsServer(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

/// The whole answer to a request: what the server sends. `request` is what arrived up to the empty
/// line. `page` is only called for a request that is answered with 200. Apart from the server so
/// that it is tested without sockets.
std::string answer_http(const std::string& request, const MetricsServer::Page& page);

}  // namespace fabricd

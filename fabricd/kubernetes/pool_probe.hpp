// PoolProbe: asks the daemon for its pool, in bounded time.

#pragma once

#include <memory>
#include <string>

#include "fabricd/kubernetes/pool_devices.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// One thread at a time. Keeps its connection, and gets a new one when the daemon was started
/// again.
class PoolProbe {
  public:
    explicit PoolProbe(const std::string& admin_socket);
    PoolProbe(PoolProbe&&) noexcept;
    ~PoolProbe();

    /// Two seconds at most. kDaemon, kDenied, kTimeout, with a text that says which.
    fabricshm::Result<PoolState> read();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd

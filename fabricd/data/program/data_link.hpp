// DataLink: the commands' way to the data service.

#pragma once

#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

/// One thread at a time.
class DataLink {
  public:
    /// kDaemon: no service listens at `socket`, or, when that is "", at any of its usual places.
    static fabricshm::Result<DataLink> open(const std::string& socket,
                                            fabricshm::TimePoint deadline);

    /// Sends a command, JSON, and gives the service's answer, JSON. Its errors come with its text.
    fabricshm::Result<std::string> ask(const std::string& json, fabricshm::TimePoint deadline);

  private:
    fabricshm::UnixSocket socket_;
    std::uint64_t last_ = 0;
};

/// Where a service of this user listens when nothing else is said.
std::string default_data_socket();

}  // namespace fabricd

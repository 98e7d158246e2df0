// An attempt to attach, as a trainer would: a hello and a goodbye.

#pragma once

#include "fabricd/ctl/doctor/host_facts.hpp"

namespace fabricd {

/// A session of a moment, with the label "fabricctl doctor". Waits for an answer until `timeout` is
/// over, which is kTimeout. Errors are as UnixSocket has them, or the daemon's own.
SocketFacts try_attach(const std::string& path, Duration timeout);

}  // namespace fabricd

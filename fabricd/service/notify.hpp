// What a service of Type=notify sends to systemd. Plain datagrams, so that libsystemd is not
// needed.

#pragma once

#include <optional>
#include <string>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Sends "READY=1", "WATCHDOG=1", "STATUS=...". Does nothing when $NOTIFY_SOCKET is not set.
/// Thread-safe. Waits at most `timeout` for room in systemd's queue, which holds some ten
/// messages; what finds none by then is lost. None for what is said again and again, by a thread
/// that must not wait; some for what is said once: a service that is not heard to be ready is
/// ended.
void notify_systemd(const std::string& state,
                    fabricshm::Duration timeout = fabricshm::Duration::zero()) noexcept;

/// Read from the environment each time; systemd sets it before the start and nothing changes it.
/// How often systemd wants to hear "WATCHDOG=1" from this process at the latest; nothing when it
/// does not watch.
std::optional<fabricshm::Duration> watchdog_interval();

}  // namespace fabricd

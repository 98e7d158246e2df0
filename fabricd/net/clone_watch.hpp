// Whether /etc/machine-id is this machine's alone: machines made from one image have one id,
// and then another boot under it proves nothing. docs/hosts.md, "Leases and fences".

#pragma once

#include "fabricd/net/boot_clock.hpp"
#include "fabricd/net/host_record.hpp"

namespace fabricd {

/// Plain data, without a clock. For one thread.
struct CloneWatch {
    Incarnation other = 0;  // of the record that this host was refused by last; 0: by none
    BootTime since{};       // when by that one first
    bool is_found = false;  // for good
};

/// This host was refused its place at `now`, since `other` is there under its name. True once:
/// `other` is another boot of this host's machine id, and has been renewed since this one asked
/// first. A machine has one boot at a time, so these are two.
bool note_refusal(CloneWatch& watch, const HostRecord& mine, const HostRecord& other,
                  fabricshm::Duration ttl, BootTime now) noexcept;

}  // namespace fabricd

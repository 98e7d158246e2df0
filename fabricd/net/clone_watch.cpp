#include "fabricd/net/clone_watch.hpp"

namespace fabricd {

bool note_refusal(CloneWatch& watch, const HostRecord& mine, const HostRecord& other,
                  fabricshm::Duration ttl, BootTime now) noexcept {
    if (watch.other != other.incarnation) {
        watch.other = other.incarnation;
        watch.since = now;
    }
    const bool is_other_boot = mine.machine != 0 && mine.machine == other.machine &&
                               other.boot != 0 && other.boot != mine.boot;
    // Of the boot before, the record is there for one lease after its last renewal. Twice that: a
    // store gives all leases their time again when it is started, or has another leader.
    if (watch.is_found || !is_other_boot || now - watch.since <= 2 * ttl) return false;
    watch.is_found = true;
    return true;
}

}  // namespace fabricd

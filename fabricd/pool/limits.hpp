// Limits: what one user, one session and one arena may have, as the keys of [limits] and [arena]
// set it (fabricd/config/config_keys.cpp) and QuotaTable, Arenas and Regions keep to it.

#pragma once

#include <cstdint>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;

/// 0 bytes: no limit but the pool's capacity.
struct Limits {
    Bytes default_arena_bytes = fabricshm::kGiB;
    Bytes max_arena_bytes = 0;  // of one job
    Bytes user_quota_bytes = 0;
    // Counts bound the daemon's own memory and descriptors rather than the pool: a session holds a
    // socket and a pidfd, an arena a descriptor and a mapping.
    int max_sessions = 4096;
    // Beyond these, for root and the daemon's user: a user that fills all others must not keep
    // those out that can do something about it.
    int reserved_sessions = 16;
    std::uint32_t own_uid = 0;  // filled in by the daemon
    int max_sessions_per_user = 1024;
    int max_arenas_per_user = 64;
    int max_arenas_per_session = 16;
    int max_regions_per_session = 65536;
    int max_groups_per_arena = 1024;
    int max_waits_per_session = 256;
    Bytes move_bytes_per_second = 0;  // of all moving shards together; 0: no limit
    // Regions given back in one turn, some 4 ms: others are served before the next ones are.
    int freed_at_once = 1024;
};

}  // namespace fabricd

// Refusals for want of room: what was wanted, what is free, and which limit it was. Every kNoMemory
// of fabricd/pool/ is made here, so that none leaves without its reason (explain()).

#pragma once

#include <string>

#include "fabricd/pool/arena.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/machine/pool_backend.hpp"

namespace fabricd {

/// A count that is at its limit. `whose` is "session 7" or "user 1000", `what` "arenas"; `key` the
/// option that holds the limit, "" when there is none to change.
Error refuse_count(const char* step, const std::string& whose, const char* what, int limit,
                   const char* key);

/// A quota in bytes. `remedy` says what changes it.
Error refuse_quota(const char* step, Bytes wanted, const std::string& whose, Bytes used,
                   Bytes quota, const std::string& remedy);

/// `bytes` more than an arena may ever have.
Error refuse_arena_size(const char* step, Bytes wanted, Bytes most);

/// The backend's refusal: of the pool, or of the host's memory. Other codes pass through as they
/// are.
Error refuse_by_pool(const Error& error, Bytes wanted, const fabricshm::PoolTotals& totals);

/// `what` is not given while the daemon drains: kBusy.
Error refuse_while_draining(const char* what);

/// No hole of `wanted` bytes in the arena.
Error refuse_hole(const char* step, const Arena& arena, Bytes wanted);

}  // namespace fabricd

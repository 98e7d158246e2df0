#include "fabricd/pool/refusals.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace fabricd {

using fabricshm::format_bytes;

Error refuse_count(const char* step, const std::string& whose, const char* what, int limit,
                   const char* key) {
    const std::string option = *key == '\0' ? "" : std::string(" (") + key + ")";
    return fabricshm::explain({Errc::kNoMemory, 0, step}, "%s has %d %s, as many as it may%s",
                              whose.c_str(), limit, what, option.c_str());
}

Error refuse_quota(const char* step, Bytes wanted, const std::string& whose, Bytes used,
                   Bytes quota, const std::string& remedy) {
    return fabricshm::explain(
        {Errc::kNoMemory, 0, step}, "wanted %s, %s has %s of its quota of %s in use (%s)",
        format_bytes(wanted).c_str(), whose.c_str(), format_bytes(used).c_str(),
        format_bytes(quota).c_str(), remedy.c_str());
}

Error refuse_arena_size(const char* step, Bytes wanted, Bytes most) {
    return fabricshm::explain({Errc::kNoMemory, 0, step},
                              "wanted %s, an arena may have %s at most (arena.max_bytes)",
                              format_bytes(wanted).c_str(), format_bytes(most).c_str());
}

// The backends' steps distinguish their cases: "machine is full", "commit arena" of a kernel
// without pages, those of a mapping, and the pool's own "pool is full", "small pool", "no such
// range on the device".
Error refuse_by_pool(const Error& error, Bytes wanted, const fabricshm::PoolTotals& totals) {
    if (error.code == Errc::kSystem && (error.detail == EMFILE || error.detail == ENFILE)) {
        return explain(error, "fabricd has no free descriptor for its files (RLIMIT_NOFILE)");
    }
    if (error.code != Errc::kNoMemory) return error;
    const bool mapping = std::strstr(error.step, "map arena") != nullptr ||
                         std::strcmp(error.step, "reserve addresses") == 0;
    if (mapping) {
        return explain(error,
                       "fabricd has no room for another mapping of %s (RLIMIT_AS, "
                       "vm.max_map_count)",
                       format_bytes(wanted).c_str());
    }
    const Bytes left = totals.capacity > totals.used ? totals.capacity - totals.used : 0;
    const std::string free = format_bytes(left) + " free of " + format_bytes(totals.capacity);
    const bool host = std::strstr(error.step, "machine") != nullptr ||
                      std::strcmp(error.step, "commit arena") == 0;
    if (host) {
        return explain(error,
                       "wanted %s, the host (or fabricd's control group) has less memory left; the "
                       "pool has %s",
                       format_bytes(wanted).c_str(), free.c_str());
    }
    return explain(error, "wanted %s, the pool has %s (pool.capacity)",
                   format_bytes(wanted).c_str(), free.c_str());
}

Error refuse_while_draining(const char* what) {
    return fabricshm::explain(
        {Errc::kBusy, 0, "the daemon is draining"},
        "fabricd is draining and takes no %s: wait for its successor, or let it take "
        "them again by `fabricctl drain --off`",
        what);
}

Error refuse_hole(const char* step, const Arena& arena, Bytes wanted) {
    // What is not committed yet is free as well, next to the hole at the end of what is.
    const Bytes rest = arena.bytes - std::min(arena.bytes, arena.committed);
    const Bytes end = arena.space.bytes_free_at_end() + rest;
    return fabricshm::explain({Errc::kNoMemory, 0, step},
                              "wanted %s, arena '%s' has %s free of %s, %s of it in one piece",
                              format_bytes(wanted).c_str(), arena.name.c_str(),
                              format_bytes(arena.space.bytes_free() + rest).c_str(),
                              format_bytes(arena.bytes).c_str(),
                              format_bytes(std::max(arena.space.largest_hole(), end)).c_str());
}

}  // namespace fabricd

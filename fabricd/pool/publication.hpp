// Publication: what an arena that one session writes and others read has besides. docs/pool.md.

#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "fabricd/pool/file_identity.hpp"
#include "fabricd/pool/ids.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// The page of one reader. In force from before its reader got it until the reader said that it
/// reads no more, or its process has ended: silence ends nothing, for a process that is stopped may
/// be reading.
struct PinPageEntry {
    SessionId session = SessionId::kNone;
    std::int32_t pid = 0;
    std::uint32_t uid = 0;
    FileIdentity identity;
    fabricshm::Fd file;      // empty: known from the journal, and not presented yet
    bool is_orphan = false;  // its session is over, its process may not be
};

/// How much of an arena its maker is to keep: elastic.hpp.
struct ElasticState {
    std::uint32_t serial = 0;        // of the newest target
    fabricshm::Bytes target = 0;     // at most what is committed
    fabricshm::Bytes releasing = 0;  // pages that go back now, and count until they are gone
    fabricshm::Bytes quota = 0;      // of the control loop; 0: all of the arena
};

/// Plain data, as Arena, of which it is a part.
struct Publication {
    std::string readers;                 // as the maker gave them
    SessionId maker = SessionId::kNone;  // kNone: gone; a session of the same user may take it up
    // A maker that was given up while its process may live: none takes up the arena before that has
    // ended, but for that process itself.
    SessionId former = SessionId::kNone;
    std::int32_t maker_pid = 0;                   // of either
    bool withdrawn = false;                       // no session subscribes any more
    std::map<std::uint64_t, PinPageEntry> pages;  // by number
    ElasticState elastic;
    fabricshm::Fd read_only;  // what readers get; empty: what all get (a device)

    /// The number of the session's page; 0: it has none.
    std::uint64_t page_of(SessionId session) const {
        for (const auto& [number, page] : pages) {
            if (page.session == session) return number;
        }
        return 0;
    }
};

}  // namespace fabricd

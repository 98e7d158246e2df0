// Arena: one job's memory as the daemon keeps it: regions, tensors, groups, and which sessions have
// it open.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fabricd/pool/cached_ranges.hpp"
#include "fabricd/pool/file_identity.hpp"
#include "fabricd/pool/group.hpp"
#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/lease.hpp"
#include "fabricd/pool/lost_ranges.hpp"
#include "fabricd/pool/publication.hpp"
#include "fabricd/pool/region_allocator.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/stripes.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

struct TensorInfo {
    std::string name;
    std::uint32_t dtype = 0;
    std::uint32_t ndim = 0;
    std::int64_t shape[fabricshm::proto::kDimsMax] = {};
    bool lasting = false;  // kTensorLasting
};

/// Bytes of an arena that were granted. The owner and generation are in the arena's LeaseTable.
struct Region {
    std::uint64_t offset = 0;
    Bytes bytes = 0;
    std::optional<TensorInfo> tensor;
    bool recovered = false;  // from the journal: its owner may not have seen the reply
    std::string device;      // whose quota counts it; "": no device's
    // The shard whose header or copy it is, by the home arena and the region of its header.
    std::optional<std::pair<ArenaId, RegionId>> shard = std::nullopt;
};

struct Effects;

/// Serves a request that was parked, and adds to the outcome what follows from it.
using Serve = std::function<void(Effects&)>;

/// A request that needs a hole of so many bytes, and is served when the arena has grown.
struct Parked {
    Bytes bytes = 0;
    Serve serve;
};

/// For what more of an arena is being committed.
enum class Growing {
    kNot,
    kForHoles,  // of requests, or of a cache
    kAsAWhole,  // a piece of it, for those that want all of it (Commits)
};

enum class ArenaState {
    kMaking,  // the backend is committing its pages
    kHere,
    kAway,  // known from the journal; no session has presented its descriptor yet
};

/// What keeps granted bytes from being granted again.
struct Dangers {
    // How many groups keep the memory of a session from others; those with none have no entry.
    std::map<SessionId, int> groups;
    // Sessions of silent hosts, which can write to all of the arena: while there are any, no byte
    // of it that was granted is granted again.
    std::set<SessionId> given_up;
    // Sessions that have other files mapped than the arena's: what they are granted here they would
    // look for there. All that is left to them is to close it, or to present the right ones; until
    // then no other session joins it.
    std::set<SessionId> strangers;
};

/// The memory of an arena that is here.
struct ArenaFiles {
    std::uint64_t offset = 0;           // where it starts: in `fd`, or in the space of `stripes`
    fabricshm::Fd fd;                   // what clients get a duplicate of
    std::vector<fabricshm::Fd> others;  // of a pool on several devices: those after `fd`
    fabricshm::Stripes stripes;
    CachedRanges cached;  // by this host; empty unless the registry has caches_apart
};

/// Plain data: the rules about it are in arenas.hpp, regions.hpp and groups.hpp. Used by the
/// control thread only.
struct Arena {
    ArenaId id = ArenaId::kNone;
    std::string name;
    std::uint32_t uid = 0;
    ArenaState state = ArenaState::kMaking;
    bool adopting = false;  // the backend is looking at a presented descriptor

    Bytes bytes = 0;
    // The first bytes, which have pages and count against quotas. Only these are granted: `space`
    // ends where they end.
    Bytes committed = 0;
    Bytes align = fabricshm::kPageBytes;
    Bytes huge_page_bytes = 0;
    Bytes link_bytes = 0;  // of the link page at its start; 0: no machine is emulated
    // Taken when the arena was made, and compared with what is presented after a restart.
    FileIdentity identity;
    ArenaFiles files;

    // Bytes, ids and names are three accounts on purpose: bytes are free as soon as no process can
    // be storing into them, an id has to rest, and a name is free at once.
    RegionAllocator space{0};
    LostRanges lost;
    LeaseTable leases;
    Bytes bytes_quarantined = 0;  // of the regions whose lease says so
    std::map<RegionId, Region> regions;
    std::map<std::string, RegionId> tensors;
    std::map<std::string, RegionId> shards;  // the regions of their headers
    int copying = 0;                         // copies under way from or to its memory
    Growing growing = Growing::kNot;         // the backend is committing more of it
    std::vector<Parked> parked;              // what waits for that, in the order it came
    std::set<SessionId> sessions;
    std::map<GroupId, Group> groups;
    std::map<std::string, GroupId> group_names;  // the newest group of each name
    Dangers dangers;
    std::optional<Publication> published;  // nothing: an arena of one user's job
    // Sessions whose quarantine is over, and the first region that was not looked at yet: it is
    // given back in pieces.
    std::map<SessionId, RegionId> freeing;

    /// Bytes that it could still grant, all of it committed.
    Bytes room() const noexcept { return bytes - space.bytes_used(); }

    /// Regions that one session holds, in id order.
    std::vector<RegionId> regions_of(SessionId session) const;

    /// Whether any group keeps the memory of `session` from being given to others. While it does,
    /// the bytes of the session rest in quarantine.
    bool endangered(SessionId session) const {
        return !dangers.given_up.empty() || dangers.groups.count(session) != 0;
    }

    /// To be called when a group was made, a member of it left or died, or it was shrunk or may be
    /// shrunk again. True when it has ceased to be a danger to its members just now.
    bool count_danger(Group& group);

    /// As clients hear of it. The object has to be there.
    fabricshm::proto::Region wire(RegionId region) const;
    fabricshm::proto::Tensor wire_tensor(RegionId region, std::int32_t owner_pid) const;
    fabricshm::proto::ArenaOpen wire() const;
};

fabricshm::proto::Group wire(const Group& group, int rank);

/// Copies into a field of the wire or the journal; `text` is known to be short enough.
void copy_name(char (&field)[fabricshm::proto::kNameBytes], const std::string& text) noexcept;

}  // namespace fabricd

// What the daemon's objects are called: ids as types of their own, so that none stands for another.

#pragma once

#include <cstdint>
#include <type_traits>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Duration;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;
using fabricshm::TimePoint;

// Sessions, arenas and groups draw from one counter that the journal keeps: an id is never used
// twice, also not after a restart. 0 is none.
enum class SessionId : std::uint64_t { kNone = 0 };
enum class ArenaId : std::uint64_t { kNone = 0 };
enum class GroupId : std::uint64_t { kNone = 0 };

// Regions are numbered within their arena and the numbers are used again; the generation, which is
// the epoch of the region's lease, distinguishes the uses.
enum class RegionId : std::uint64_t { kNone = 0 };

/// The number that goes over the wire and into the journal.
template <typename Id>
constexpr std::uint64_t raw(Id id) noexcept {
    return static_cast<std::uint64_t>(id);
}

/// The same for printf, whose %llu wants exactly this type.
template <typename Id>
constexpr unsigned long long shown(Id id) noexcept {
    return static_cast<unsigned long long>(id);
}

/// Which session asked what: where an answer that comes later has to go. A ticket may outlive its
/// session: the answer is dropped then.
struct Ticket {
    SessionId session = SessionId::kNone;
    std::uint64_t request_id = 0;
};

}  // namespace fabricd

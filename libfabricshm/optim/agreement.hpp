// What ranks that share parameters let each other know before they go on.

#pragma once

#include <cstdint>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/group.hpp"

namespace fabricshm {

Result<void> pass_barrier(Group& group, TimePoint deadline);

/// `mine` of every rank, by rank; equally many numbers on all.
Result<std::vector<std::uint64_t>> gather(Group& group, const std::vector<std::uint64_t>& mine,
                                          TimePoint deadline);

}  // namespace fabricshm

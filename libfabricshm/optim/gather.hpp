// What ranks say to each other outside of a step: a few numbers of each, to all.

#pragma once

#include <cstdint>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/group.hpp"

namespace fabricshm {

/// What every rank says, by rank: as many numbers as each has, which are as many on all. By all
/// ranks of `group`; fails as a collective does.
Result<std::vector<std::uint64_t>> gather(Group& group, const std::vector<std::uint64_t>& mine,
                                          TimePoint deadline);

}  // namespace fabricshm

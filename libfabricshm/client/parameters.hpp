// Where the memory of a parameter set comes from: a lasting tensor of the group's arena, or of
// another one that lies nearer.

#pragma once

#include <memory>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/client/arena.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/optim/parameter_set.hpp"

namespace fabricshm {

/// The group that shares a set, and the memory that it is in: `arena` is the group's `home`, or
/// another one, the same on all ranks.
struct ParameterPlace {
    Group& group;
    Arena& home;
    Arena& arena;
};

/// By all ranks of the group: makes or finds the set's memory, and attaches to it; but if `own` is
/// this rank's reason not to, no rank does. kUnsupported:
/// the ranks run on different nodes of an emulated machine, and `arena` is memory of one.
Result<std::unique_ptr<ParameterSet>> open_parameters(const ParameterPlace& place,
                                                      const std::string& name, ParameterSpec spec,
                                                      const Result<void>& own, TimePoint deadline);

/// By all ranks, with the same answer on all: how long a step of a set of `spec` takes that lies
/// there, worked out from steps of a small one that is made for it and freed again.
Result<Duration> estimate_step(const ParameterPlace& place, const ParameterSpec& spec,
                               TimePoint deadline);

/// Ends the set for all: kBusy while a living process has it open, kNotFound when there is none,
/// kExists when the name is another tensor's.
Result<void> free_parameters(Arena& arena, const std::string& name);

/// Bytes of its tensor, for a valid spec.
Bytes parameter_bytes(const ParameterSpec& spec);

}  // namespace fabricshm

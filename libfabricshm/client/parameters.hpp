// Where the memory of a parameter set comes from: a lasting tensor of the group's arena.

#pragma once

#include <memory>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/client/arena.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/optim/parameter_set.hpp"

namespace fabricshm {

/// By all ranks of `group`: makes or finds the set's memory, and attaches to it.
Result<std::unique_ptr<ParameterSet>> open_parameters(Arena& arena, Group& group,
                                                      const std::string& name, ParameterSpec spec,
                                                      TimePoint deadline);

/// Ends the set for all: kBusy while a living process has it open, kNotFound when there is none,
/// kExists when the name is another tensor's.
Result<void> free_parameters(Arena& arena, const std::string& name);

/// Bytes of its tensor, for a valid spec.
Bytes parameter_bytes(const ParameterSpec& spec);

}  // namespace fabricshm

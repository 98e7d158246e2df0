// What fabricshm_parameters of the C ABI is.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/include/fabricshm/optim.h"
#include "libfabricshm/optim/parameter_set.hpp"
#include "libfabricshm/optim/parameter_snapshots.hpp"
#include "libfabricshm/optim/stale_steps.hpp"

/// `group` is nullptr once it was left: then the set can be closed, and nothing else.
struct fabricshm_parameters {
    std::string name;
    std::shared_ptr<fabricshm::Arena> arena;
    std::uint64_t home = 0;  // the id of its groups' arena
    fabricshm_session* session = nullptr;
    fabricshm_group* group = nullptr;
    std::unique_ptr<fabricshm::ParameterSet> set;
    std::unique_ptr<fabricshm::ParameterSnapshots> snapshots;  // after the set, so gone before it
    std::unique_ptr<fabricshm::StaleSteps> stale;              // likewise; made when it is needed
};

namespace fabricshm {

/// 0, or the refusal of a set that is NULL or another process's.
int check_set(const char* function, const fabricshm_parameters* set);

/// What a step is called with: checked, and in our types. `call` receives it.
int take_step(const char* function, const fabricshm_parameters& set,
              const fabricshm_step_call* given, const fabricshm_step_report* report,
              StepCall& call);

/// The failure, with the names of set and arena.
int fail_set(const Error& error, const fabricshm_parameters& set);

}  // namespace fabricshm

// The C ABI: parameter sets.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/parameters.hpp"
#include "libfabricshm/client/parameters_handle.hpp"
#include "libfabricshm/client/tensor.hpp"

namespace fabricshm {

namespace {

#define FABRIC_MATCHES(rule, value, c, ...) static_assert(static_cast<int>(c) == value);
FABRIC_OPTIMISERS(FABRIC_MATCHES)
#undef FABRIC_MATCHES

ParameterSpec spec_of(const fabricshm_parameters_spec& given, int world) {
    ParameterSpec spec;
    for (std::uint64_t i = 0; i < given.count; ++i) {
        const fabricshm_parameter& from = given.parameters[i];
        Parameter to;
        to.name = from.name != nullptr ? from.name : "";
        to.shape.assign(from.shape, from.shape + std::max(from.ndim, 0));
        to.options = from.options;
        spec.parameters.push_back(std::move(to));
    }
    spec.rule = static_cast<kernels::Rule>(given.optimiser);
    spec.gradients = static_cast<kernels::DType>(given.gradients);
    spec.copy = static_cast<kernels::DType>(given.copy);
    spec.slots = given.slots == 0 ? world : given.slots;
    return spec;
}

// What would be out of its range once it is in the types of a ParameterSpec.
int check_given(const char* function, const fabricshm_parameters_spec* spec) {
    if (spec == nullptr) return refuse("%s: spec is NULL", function);
    if (const int code =
            check_struct_size("spec", spec, spec->struct_size, sizeof(fabricshm_parameters_spec));
        code != FABRICSHM_OK) {
        return code;
    }
    if (spec->parameters == nullptr) return refuse("%s: spec->parameters is NULL", function);
    if (static_cast<unsigned>(spec->optimiser) >= static_cast<unsigned>(kernels::kRuleCount)) {
        return refuse("%s: there is no optimiser %d", function, static_cast<int>(spec->optimiser));
    }
    for (const fabricshm_dtype type : {spec->gradients, spec->copy}) {
        if (static_cast<unsigned>(type) < static_cast<unsigned>(kernels::kDTypeCount)) continue;
        return refuse("%s: there is no dtype %d", function, static_cast<int>(type));
    }
    for (std::uint64_t i = 0; i < spec->count; ++i) {
        const fabricshm_parameter& parameter = spec->parameters[i];
        const bool shaped =
            parameter.ndim == 0 || (parameter.ndim > 0 && parameter.shape != nullptr &&
                                    parameter.ndim <= FABRICSHM_DIMS_MAX);
        if (shaped) continue;
        return refuse("%s: parameter %llu: ndim is not 0 to %d, or shape is NULL", function,
                      static_cast<unsigned long long>(i), FABRICSHM_DIMS_MAX);
    }
    return FABRICSHM_OK;
}

// The arena that a spec names, or the group's; nullptr after a refusal.
std::shared_ptr<Arena> arena_of(const char* function, const fabricshm_group& group,
                                const fabricshm_parameters_spec& spec) {
    if (spec.arena == nullptr) return group.arena;
    if (spec.arena->session == group.session) return spec.arena->arena;
    (void)refuse("%s: spec->arena is of another session than the group", function);
    return nullptr;
}

// Two handles of one set in a process would be one memory under two names, and the first of them
// sent away.
Result<void> check_not_open(fabricshm_session& session, const fabricshm_parameters& wanted) {
    const std::lock_guard lock(session.mutex);
    for (const fabricshm_group* group : session.groups) {
        for (const fabricshm_parameters* other : group->sets) {
            if (other->name != wanted.name || !other->arena->is_same(*wanted.arena)) continue;
            return explain({Errc::kBusy, 0, "open parameters"},
                           "this process has the set open already, in group '%s': close it first, "
                           "or take another name",
                           group->name.c_str());
        }
    }
    return {};
}

// Of a call that opens or measures a set.
int check_open(const char* function, const fabricshm_group* group,
               const fabricshm_parameters_spec* spec, std::int64_t timeout_ms) {
    if (group == nullptr) return refuse("%s: group is NULL", function);
    if (group->arena->session().is_foreign()) return fail({Errc::kClosed, 0, ""}, "%s", function);
    if (const int code = check_one_pool(function, *group); code != 0) return code;
    if (const int code = check_given(function, spec); code != 0) return code;
    return check_timeout(function, timeout_ms);
}

// `group` is nullptr when the set is closed.
void move_to(fabricshm_parameters& set, fabricshm_group* group) {
    const std::lock_guard lock(set.session->mutex);
    if (set.group != nullptr) std::erase(set.group->sets, &set);
    set.group = group;
    if (group != nullptr) group->sets.push_back(&set);
}

kernels::Hyper hyper_of(const fabricshm_hyper& given) {
    kernels::Hyper hyper;
    hyper.learning_rate = given.learning_rate;
    hyper.beta1 = given.beta1;
    hyper.beta2 = given.beta2;
    hyper.epsilon = given.epsilon;
    hyper.weight_decay = given.weight_decay;
    hyper.momentum = given.momentum;
    hyper.dampening = given.dampening;
    hyper.nesterov = given.nesterov != 0;
    hyper.maximize = given.maximize != 0;
    return hyper;
}

int check_step(const char* function, const fabricshm_step_call* call,
               const fabricshm_step_report* report) {
    if (call == nullptr) return refuse("%s: call is NULL", function);
    if (const int code =
            check_struct_size("call", call, call->struct_size, sizeof(fabricshm_step_call));
        code != FABRICSHM_OK) {
        return code;
    }
    if (call->hyper == nullptr) return refuse("%s: call->hyper is NULL", function);
    if (call->hyper_count > kMaxOptions) {
        return refuse("%s: call->hyper_count is above %u", function, kMaxOptions);
    }
    if (call->reserved != 0) return refuse("%s: call->reserved is not 0", function);
    if (call->skip_nonfinite != 0 && call->skip_nonfinite != 1) {
        return refuse("%s: call->skip_nonfinite is not 0 or 1", function);
    }
    if (report != nullptr && report->struct_size < sizeof(fabricshm_step_report)) {
        return refuse("%s: report->struct_size is %zu, not %zu", function, report->struct_size,
                      sizeof(fabricshm_step_report));
    }
    return check_timeout(function, call->timeout_ms);
}

}  // namespace

int check_set(const char* function, const fabricshm_parameters* set) {
    if (set == nullptr) return refuse("%s: set is NULL", function);
    if (set->arena->session().is_foreign()) return fail({Errc::kClosed, 0, ""}, "%s", function);
    return FABRICSHM_OK;
}

int fail_set(const Error& error, const fabricshm_parameters& set) {
    return fail(error, "parameters '%s' in arena '%s'", set.name.c_str(),
                set.arena->name().c_str());
}

int take_step(const char* function, const fabricshm_parameters& set,
              const fabricshm_step_call* given, const fabricshm_step_report* report,
              StepCall& call) {
    if (const int code = check_step(function, given, report); code != 0) return code;
    call.hyper.reserve(given->hyper_count);
    for (std::uint64_t i = 0; i < given->hyper_count; ++i) {
        call.hyper.push_back(hyper_of(given->hyper[i]));
    }
    call.weight = given->weight;
    call.scale = given->scale;
    call.clip_norm = given->clip_norm;
    call.skip_nonfinite = given->skip_nonfinite != 0;
    call.deadline = deadline_of(set.arena->session(), given->timeout_ms);
    return FABRICSHM_OK;
}

void leave_group(fabricshm_parameters& set) noexcept {
    set.group = nullptr;
    set.snapshots.reset();
    set.stale.reset();
    // Its last word in the shared records; the memory stays mapped until the set is closed.
    set.set.reset();
}

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

uint64_t fabricshm_parameters_bytes(const fabricshm_parameters_spec* spec, int world) {
    std::uint64_t bytes = 0;
    guarded("fabricshm_parameters_bytes", [&]() -> int {
        if (const int code = check_given("fabricshm_parameters_bytes", spec); code != 0)
            return code;
        const ParameterSpec made = spec_of(*spec, world);
        if (const auto checked = check_spec(made); !checked.ok()) {
            return fail(checked.error(), "fabricshm_parameters_bytes");
        }
        bytes = parameter_bytes(made);
        return FABRICSHM_OK;
    });
    return bytes;
}

int fabricshm_parameters_open(fabricshm_group* group, const char* name,
                              const fabricshm_parameters_spec* spec, int64_t timeout_ms,
                              fabricshm_parameters** set) {
    const char* function = "fabricshm_parameters_open";
    return guarded(function, [&]() -> int {
        if (set == nullptr) return refuse("%s: set is NULL", function);
        if (const int code = check_open(function, group, spec, timeout_ms); code != 0) return code;
        if (const int code = check_name(function, name); code != 0) return code;
        auto handle = std::make_unique<fabricshm_parameters>();
        handle->name = name;
        handle->arena = arena_of(function, *group, *spec);
        if (handle->arena == nullptr) return FABRICSHM_EINVAL;
        handle->home = group->arena->id();
        handle->session = group->session;
        auto opened = open_parameters({*group->group, *group->arena, *handle->arena}, name,
                                      spec_of(*spec, group->group->world()),
                                      check_not_open(*group->session, *handle),
                                      deadline_of(group->arena->session(), timeout_ms));
        if (!opened.ok()) return fail_set(opened.error(), *handle);
        handle->set = std::move(opened).value();
        handle->snapshots = std::make_unique<ParameterSnapshots>(*handle->set);
        move_to(*handle, group);
        *set = handle.release();
        return FABRICSHM_OK;
    });
}

int fabricshm_parameters_estimate(fabricshm_group* group, const fabricshm_parameters_spec* spec,
                                  int64_t timeout_ms, uint64_t* step_ns) {
    const char* function = "fabricshm_parameters_estimate";
    return guarded(function, [&]() -> int {
        if (const int code = check_open(function, group, spec, timeout_ms); code != 0) return code;
        if (step_ns == nullptr) return refuse("%s: step_ns is NULL", function);
        const std::shared_ptr<Arena> arena = arena_of(function, *group, *spec);
        if (arena == nullptr) return FABRICSHM_EINVAL;
        const auto estimate = estimate_step({*group->group, *group->arena, *arena},
                                            spec_of(*spec, group->group->world()),
                                            deadline_of(arena->session(), timeout_ms));
        if (!estimate.ok()) {
            return fail(estimate.error(), "a step of parameters in arena '%s'",
                        arena->name().c_str());
        }
        *step_ns = static_cast<std::uint64_t>(*estimate / std::chrono::nanoseconds(1));
        return FABRICSHM_OK;
    });
}

void fabricshm_parameters_close(fabricshm_parameters* set) {
    if (set == nullptr) return;
    // In a child of fork() the records are the parent's: nothing is said in them.
    if (set->arena->session().is_foreign()) {
        (void)set->snapshots.release();
        (void)set->stale.release();
        (void)set->set.release();
        return;
    }
    if (set->group != nullptr) move_to(*set, nullptr);
    delete set;
}

int fabricshm_parameters_free(fabricshm_arena* arena, const char* name) {
    const char* function = "fabricshm_parameters_free";
    return guarded(function, [&]() -> int {
        if (arena == nullptr) return refuse("%s: arena is NULL", function);
        if (const int code = check_name(function, name); code != 0) return code;
        if (arena->arena->session().is_foreign()) {
            return fail({Errc::kClosed, 0, ""}, "%s", function);
        }
        const auto freed = free_parameters(*arena->arena, name);
        if (freed.ok()) return FABRICSHM_OK;
        return fail(freed.error(), "parameters '%s' in arena '%s'", name,
                    arena->arena->name().c_str());
    });
}

int fabricshm_parameter_view(const fabricshm_parameters* set, uint64_t index,
                             fabricshm_parameter_memory* memory) {
    const char* function = "fabricshm_parameter_view";
    return guarded(function, [&]() -> int {
        if (const int code = check_set(function, set); code != 0) return code;
        if (memory == nullptr) return refuse("%s: memory is NULL", function);
        if (set->set == nullptr) return fail_set({Errc::kClosed, 0, "its group was left"}, *set);
        const ParameterSet& of = *set->set;
        if (index >= of.spec().parameters.size()) {
            return refuse("%s: index %llu is not below %zu", function,
                          static_cast<unsigned long long>(index), of.spec().parameters.size());
        }
        fabricshm_parameter_memory view{};
        view.values = of.values(index);
        view.copy = of.copy(index);
        view.gradient = of.gradient(index);
        for (int i = 0; i < of.layout().states; ++i) view.state[i] = of.state(index, i);
        view.count = of.spec().parameters[index].elements();
        *memory = view;
        return FABRICSHM_OK;
    });
}

uint64_t fabricshm_parameters_steps(const fabricshm_parameters* set) {
    return set != nullptr && set->set != nullptr ? set->set->steps() : 0;
}

int fabricshm_parameters_set_steps(fabricshm_parameters* set, uint64_t steps) {
    const char* function = "fabricshm_parameters_set_steps";
    return guarded(function, [&]() -> int {
        if (const int code = check_set(function, set); code != 0) return code;
        if (set->set == nullptr) return fail_set({Errc::kClosed, 0, "its group was left"}, *set);
        const auto taken = set->set->set_steps(steps);
        return taken.ok() ? FABRICSHM_OK : fail_set(taken.error(), *set);
    });
}

int fabricshm_parameters_share(fabricshm_parameters* set, const double* shares, int count) {
    const char* function = "fabricshm_parameters_share";
    return guarded(function, [&]() -> int {
        if (const int code = check_set(function, set); code != 0) return code;
        if (shares == nullptr) return refuse("%s: shares is NULL", function);
        if (count < 1 || count > FABRICSHM_WORLD_MAX)
            return refuse("%s: count is not 1 to %d", function, FABRICSHM_WORLD_MAX);
        if (set->set == nullptr) return fail_set({Errc::kClosed, 0, "its group was left"}, *set);
        const auto shared = set->set->share({shares, shares + count});
        return shared.ok() ? FABRICSHM_OK : fail_set(shared.error(), *set);
    });
}

int fabricshm_parameters_step(fabricshm_parameters* set, const fabricshm_step_call* call,
                              fabricshm_step_report* report) {
    const char* function = "fabricshm_parameters_step";
    return guarded(function, [&]() -> int {
        if (const int code = check_set(function, set); code != 0) return code;
        StepCall step;
        if (const int code = take_step(function, *set, call, report, step); code != 0) return code;
        if (set->set == nullptr) return fail_set({Errc::kClosed, 0, "its group was left"}, *set);
        const auto stepped = set->set->step(step);
        if (!stepped.ok()) return fail_set(stepped.error(), *set);
        if (report == nullptr) return FABRICSHM_OK;
        const std::size_t size = report->struct_size;
        std::memset(report, 0, sizeof *report);
        report->struct_size = size;
        report->step = stepped->step;
        report->norm = stepped->norm;
        report->waited_ns = stepped->waited / std::chrono::nanoseconds(1);
        report->computed_ns = stepped->computed / std::chrono::nanoseconds(1);
        report->skipped = stepped->skipped ? 1 : 0;
        return FABRICSHM_OK;
    });
}

int fabricshm_parameters_recover(fabricshm_parameters* set, fabricshm_group* group,
                                 int64_t timeout_ms, int* applied) {
    const char* function = "fabricshm_parameters_recover";
    return guarded(function, [&]() -> int {
        if (const int code = check_set(function, set); code != 0) return code;
        if (group == nullptr) return refuse("%s: group is NULL", function);
        if (const int code = check_one_pool(function, *group); code != 0) return code;
        if (const int code = check_timeout(function, timeout_ms); code != 0) return code;
        if (group->arena->id() != set->home) {
            return refuse("%s: the group is in arena '%s', the set's own was in another", function,
                          group->arena->name().c_str());
        }
        if (set->set == nullptr) return fail_set({Errc::kClosed, 0, "its group was left"}, *set);
        const auto recovered =
            set->set->recover(*group->group, deadline_of(set->arena->session(), timeout_ms));
        if (!recovered.ok()) return fail_set(recovered.error(), *set);
        set->stale.reset();  // its slots and ranges may be others
        move_to(*set, group);
        if (applied != nullptr) *applied = recovered->applied ? 1 : 0;
        return FABRICSHM_OK;
    });
}

}  // extern "C"

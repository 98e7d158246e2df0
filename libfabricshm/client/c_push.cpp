// The C ABI: ranks that step a parameter set each for itself.

#include <cstring>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/parameters_handle.hpp"

using namespace fabricshm;

namespace {

// Of a set whose group was not left.
StaleSteps& stale_of(fabricshm_parameters& set) {
    if (set.stale == nullptr) set.stale = std::make_unique<StaleSteps>(*set.set);
    return *set.stale;
}

int check_open_set(const char* function, const fabricshm_parameters* set) {
    if (const int code = check_set(function, set); code != 0) return code;
    if (set->set == nullptr) return fail_set({Errc::kClosed, 0, "its group was left"}, *set);
    return FABRICSHM_OK;
}

}  // namespace

extern "C" {

int fabricshm_parameters_push(fabricshm_parameters* set, const fabricshm_step_call* call,
                              fabricshm_step_report* report) {
    const char* function = "fabricshm_parameters_push";
    return guarded(function, [&]() -> int {
        if (const int code = check_open_set(function, set); code != 0) return code;
        StepCall step;
        if (const int code = take_step(function, *set, call, report, step); code != 0) return code;
        // Of this rank's shard, which others step as well, and would not save first.
        if (set->snapshots->is_running()) {
            return fail_set(explain({Errc::kBusy, 0, "push"}, "a snapshot was not waited for"),
                            *set);
        }
        const auto pushed = stale_of(*set).push(step);
        if (!pushed.ok()) return fail_set(pushed.error(), *set);
        if (report == nullptr) return FABRICSHM_OK;
        const std::size_t size = report->struct_size;
        std::memset(report, 0, sizeof *report);
        report->struct_size = size;
        report->step = pushed->step;
        report->norm = __builtin_nan("");
        report->waited_ns = pushed->waited / std::chrono::nanoseconds(1);
        report->computed_ns = pushed->computed / std::chrono::nanoseconds(1);
        return FABRICSHM_OK;
    });
}

int fabricshm_parameters_pull(fabricshm_parameters* set, float* const* values, uint64_t count,
                              int64_t timeout_ms) {
    const char* function = "fabricshm_parameters_pull";
    return guarded(function, [&]() -> int {
        if (const int code = check_open_set(function, set); code != 0) return code;
        if (values == nullptr) return refuse("%s: values is NULL", function);
        if (const int code = check_timeout(function, timeout_ms); code != 0) return code;
        if (count != set->set->spec().parameters.size()) {
            return refuse("%s: count is %llu, and the set has %zu parameters", function,
                          static_cast<unsigned long long>(count),
                          set->set->spec().parameters.size());
        }
        const std::vector<float*> places(values, values + count);
        for (const float* place : places) {
            if (place == nullptr) return refuse("%s: one of values is NULL", function);
        }
        const auto pulled =
            stale_of(*set).pull(places, deadline_of(set->arena->session(), timeout_ms));
        return pulled.ok() ? FABRICSHM_OK : fail_set(pulled.error(), *set);
    });
}

int fabricshm_parameters_advance(fabricshm_parameters* set, uint64_t staleness, int64_t timeout_ms,
                                 uint64_t* version) {
    const char* function = "fabricshm_parameters_advance";
    return guarded(function, [&]() -> int {
        if (const int code = check_open_set(function, set); code != 0) return code;
        if (const int code = check_timeout(function, timeout_ms); code != 0) return code;
        const auto next =
            stale_of(*set).advance(staleness, deadline_of(set->arena->session(), timeout_ms));
        if (!next.ok()) return fail_set(next.error(), *set);
        if (version != nullptr) *version = *next;
        return FABRICSHM_OK;
    });
}

int fabricshm_parameters_finish(fabricshm_parameters* set, int64_t timeout_ms) {
    const char* function = "fabricshm_parameters_finish";
    return guarded(function, [&]() -> int {
        if (const int code = check_open_set(function, set); code != 0) return code;
        if (const int code = check_timeout(function, timeout_ms); code != 0) return code;
        const auto finished = stale_of(*set).finish(deadline_of(set->arena->session(), timeout_ms));
        return finished.ok() ? FABRICSHM_OK : fail_set(finished.error(), *set);
    });
}

}  // extern "C"

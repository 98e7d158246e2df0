#include "libfabricshm/python/parameters.hpp"

#include <utility>

#include "kernels/dtype.hpp"
#include "libfabricshm/python/errors.hpp"

namespace py = pybind11;

namespace fabricshm::python {

namespace {

// The C structs, which point into the list.
class Spec {
  public:
    Spec(const ParameterList& list, int optimiser, int gradients, int copy, int slots,
         fabricshm_arena* arena) {
        for (const auto& [name, shape, options] : list) {
            parameters_.push_back(
                {name.c_str(), shape.data(), static_cast<std::int32_t>(shape.size()), options});
        }
        spec_ = {sizeof spec_,
                 parameters_.data(),
                 parameters_.size(),
                 static_cast<fabricshm_optimiser>(optimiser),
                 static_cast<fabricshm_dtype>(gradients),
                 static_cast<fabricshm_dtype>(copy),
                 slots,
                 arena};
    }
    Spec(const Spec&) = delete;
    Spec& operator=(const Spec&) = delete;
    const fabricshm_parameters_spec* get() const { return &spec_; }

  private:
    std::vector<fabricshm_parameter> parameters_;
    fabricshm_parameters_spec spec_;
};

}  // namespace

Parameters Parameters::open(const Group& group, const std::string& name, const ParameterList& list,
                            int optimiser, int gradients, int copy, int slots, const Arena* arena,
                            std::int64_t timeout_ms) {
    const std::shared_ptr<GroupHandle> of = group.handle();
    const std::shared_ptr<ArenaHandle> in = arena != nullptr ? arena->handle() : of->arena;
    const Spec spec(list, optimiser, gradients, copy, slots, in->arena);
    fabricshm_parameters* opened = nullptr;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(of->calling);
        return fabricshm_parameters_open(of->group, name.c_str(), spec.get(), timeout_ms, &opened);
    }));
    return Parameters(std::make_shared<ParametersHandle>(of, in, opened),
                      fabricshm_dtype_size(static_cast<fabricshm_dtype>(gradients)));
}

std::uint64_t Parameters::estimate(const Group& group, const ParameterList& list, int optimiser,
                                   int gradients, int copy, const Arena* arena,
                                   std::int64_t timeout_ms) {
    const std::shared_ptr<GroupHandle> of = group.handle();
    const std::shared_ptr<ArenaHandle> in = arena != nullptr ? arena->handle() : of->arena;
    const Spec spec(list, optimiser, gradients, copy, 0, in->arena);
    std::uint64_t step_ns = 0;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(of->calling);
        return fabricshm_parameters_estimate(of->group, spec.get(), timeout_ms, &step_ns);
    }));
    return step_ns;
}

std::uint64_t Parameters::bytes(const ParameterList& list, int optimiser, int gradients, int copy,
                                int slots) {
    const Spec spec(list, optimiser, gradients, copy, slots, nullptr);
    const std::uint64_t bytes = fabricshm_parameters_bytes(spec.get(), slots);
    if (bytes == 0) check(FABRICSHM_EINVAL);
    return bytes;
}

std::shared_ptr<ParametersHandle> Parameters::held() const {
    if (handle_ == nullptr) raise_closed("set of parameters");
    return handle_;
}

py::tuple Parameters::view(std::uint64_t index) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    fabricshm_parameter_memory memory{};
    check(fabricshm_parameter_view(handle->set, index, &memory));
    const auto array = [&](void* data, std::size_t element) -> py::object {
        if (data == nullptr) return py::none();
        return borrowed_array(handle->arena, data, memory.count * element);
    };
    py::list states;
    for (float* state : memory.state) {
        if (state != nullptr) states.append(array(state, sizeof(float)));
    }
    return py::make_tuple(array(memory.values, sizeof(float)), array(memory.copy, 2),
                          array(memory.gradient, gradient_bytes_), states);
}

fabricshm_step_report Parameters::step(const std::vector<fabricshm_hyper>& hyper, double weight,
                                       double scale, double clip_norm, bool skip_nonfinite,
                                       std::int64_t timeout_ms) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    fabricshm_step_call call = fabricshm_step_make(hyper.data(), hyper.size());
    call.weight = weight;
    call.scale = scale;
    call.clip_norm = clip_norm;
    call.skip_nonfinite = skip_nonfinite ? 1 : 0;
    call.timeout_ms = timeout_ms;
    fabricshm_step_report report{};
    report.struct_size = sizeof report;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(handle->group->calling);
        return fabricshm_parameters_step(handle->set, &call, &report);
    }));
    return report;
}

// Other threads may use the group meanwhile: what ranks do each for itself is no call of it.
fabricshm_step_report Parameters::push(const std::vector<fabricshm_hyper>& hyper, double weight,
                                       double scale, std::int64_t timeout_ms) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    fabricshm_step_call call = fabricshm_step_make(hyper.data(), hyper.size());
    call.weight = weight;
    call.scale = scale;
    call.timeout_ms = timeout_ms;
    fabricshm_step_report report{};
    report.struct_size = sizeof report;
    check(without_lock([&] { return fabricshm_parameters_push(handle->set, &call, &report); }));
    return report;
}

void Parameters::pull(const std::vector<std::uintptr_t>& values, std::int64_t timeout_ms) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    std::vector<float*> places;
    for (const std::uintptr_t place : values) places.push_back(reinterpret_cast<float*>(place));
    check(without_lock([&] {
        return fabricshm_parameters_pull(handle->set, places.data(), places.size(), timeout_ms);
    }));
}

std::uint64_t Parameters::advance(std::uint64_t staleness, std::int64_t timeout_ms) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    std::uint64_t version = 0;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(handle->group->calling);
        return fabricshm_parameters_advance(handle->set, staleness, timeout_ms, &version);
    }));
    return version;
}

void Parameters::finish(std::int64_t timeout_ms) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    check(without_lock([&] {
        std::lock_guard one_at_a_time(handle->group->calling);
        return fabricshm_parameters_finish(handle->set, timeout_ms);
    }));
}

void Parameters::share(const std::vector<double>& shares) const {
    check(fabricshm_parameters_share(held()->set, shares.data(), static_cast<int>(shares.size())));
}

bool Parameters::recover(const Group& group, std::int64_t timeout_ms) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    const std::shared_ptr<GroupHandle> to = group.handle();
    int applied = 0;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(to->calling);
        return fabricshm_parameters_recover(handle->set, to->group, timeout_ms, &applied);
    }));
    handle->group = to;
    return applied != 0;
}

void Parameters::set_steps(std::uint64_t steps) const {
    check(fabricshm_parameters_set_steps(held()->set, steps));
}

void Parameters::snapshot_begin(const std::string& directory, std::uint32_t keep,
                                std::uint64_t file_bytes, bool plain_writes,
                                std::int64_t timeout_ms) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    fabricshm_snapshot_call call = fabricshm_snapshot_make(directory.c_str());
    call.keep = keep;
    call.file_bytes = file_bytes;
    call.plain_writes = plain_writes ? 1 : 0;
    call.timeout_ms = timeout_ms;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(handle->group->calling);
        return fabricshm_parameters_snapshot_begin(handle->set, &call);
    }));
}

fabricshm_snapshot_report Parameters::snapshot_wait(std::int64_t timeout_ms) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    fabricshm_snapshot_report report{};
    report.struct_size = sizeof report;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(handle->group->calling);
        return fabricshm_parameters_snapshot_wait(handle->set, timeout_ms, &report);
    }));
    return report;
}

std::uint64_t Parameters::restore(const std::string& path, std::int64_t timeout_ms) const {
    const std::shared_ptr<ParametersHandle> handle = held();
    std::uint64_t step = 0;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(handle->group->calling);
        return fabricshm_parameters_restore(handle->set, path.c_str(), timeout_ms, &step);
    }));
    return step;
}

std::string latest_snapshot(const std::string& directory) {
    char path[4096];
    check(fabricshm_snapshot_latest(directory.c_str(), path, sizeof path));
    return path;
}

void free_parameters(const Arena& arena, const std::string& name) {
    const std::shared_ptr<ArenaHandle> handle = arena.handle();
    check(without_lock([&] { return fabricshm_parameters_free(handle->arena, name.c_str()); }));
}

}  // namespace fabricshm::python

#include "libfabricshm/torch/training.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "libfabricshm/torch/process_group.hpp"

namespace py = pybind11;

namespace fabricshm::torch_backend {
namespace {

using GroupRef = c10::intrusive_ptr<GroupBase>;

const ProcessGroupFabricshm* ours(const GroupRef& group) {
    return dynamic_cast<const ProcessGroupFabricshm*>(group.get());
}

ProcessGroupFabricshm& own(const GroupRef& group) {
    auto* found = dynamic_cast<ProcessGroupFabricshm*>(group.get());
    TORCH_CHECK_TYPE(found != nullptr, "this is no process group of fabricshm");
    return *found;
}

const Communicator& communicator_of(const GroupRef& group) {
    return own(group).communicator();
}

void step(const GroupRef& group, std::uint64_t samples, double loss, double gradient_norm,
          double mean_gradient_norm, std::int64_t compute_ns, std::uint32_t queue) {
    fabricshm_step_info info = fabricshm_step_info_make(samples);
    info.loss = loss;
    info.gradient_norm = gradient_norm;
    info.mean_gradient_norm = mean_gradient_norm;
    info.compute_ns = compute_ns;
    info.queue = queue;
    communicator_of(group).step(info);
}

// (serial, decision, sync interval, shares, work units) or None. The lists have a place for each
// rank; shares beyond the ranks of the group are ignored.
py::object directives(const GroupRef& group) {
    const Communicator& communicator = communicator_of(group);
    const auto found = communicator.directives();
    if (!found) return py::none();
    const int world =
        communicator.size() < FABRICSHM_PEERS_MAX ? communicator.size() : FABRICSHM_PEERS_MAX;
    const std::vector<double> shares(found->batch_share, found->batch_share + world);
    const std::vector<std::uint32_t> units(found->work_units, found->work_units + world);
    return py::make_tuple(found->serial, found->decision, found->sync_interval, shares, units);
}

}  // namespace

void bind_training(py::module_& module) {
    module.def("is_ours", [](const GroupRef& group) { return ours(group) != nullptr; });
    module.def(
        "abort", [](const GroupRef& group) { own(group).abort(); },
        py::call_guard<py::gil_scoped_release>());
    module.def(
        "shutdown", [](const GroupRef& group) { own(group).shutdown(); },
        py::call_guard<py::gil_scoped_release>());
    module.def("step", &step, py::arg("group"), py::arg("samples"), py::arg("loss"),
               py::arg("gradient_norm"), py::arg("mean_gradient_norm"), py::arg("compute_ns"),
               py::arg("queue"));
    module.def("directives", &directives, py::arg("group"));
}

}  // namespace fabricshm::torch_backend

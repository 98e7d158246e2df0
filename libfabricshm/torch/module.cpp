// The Python extension fabricshm.torch._backend.

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/torch/arena_allocator.hpp"
#include "libfabricshm/torch/job_arena.hpp"
#include "libfabricshm/torch/process_group.hpp"
#include "libfabricshm/torch/training.hpp"

namespace py = pybind11;
using namespace fabricshm::torch_backend;

namespace {

c10::intrusive_ptr<GroupBase> create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                     int size, const std::chrono::milliseconds& timeout) {
    return c10::make_intrusive<ProcessGroupFabricshm>(store, rank, size, timeout);
}

AllocatorMode mode_of(const std::string& name) {
    if (name == "off") return AllocatorMode::kOff;
    if (name == "scoped") return AllocatorMode::kScoped;
    TORCH_CHECK_VALUE(name == "all", "expected off, scoped or all, not ", name);
    return AllocatorMode::kAll;
}

// Of the bytes of a tensor without gaps; `previous` continues an earlier one.
std::uint32_t checksum(const at::Tensor& tensor, std::uint32_t previous) {
    const bool is_plain = tensor.device().is_cpu() && tensor.layout() == at::kStrided;
    TORCH_CHECK_VALUE(is_plain && tensor.is_contiguous(), "expected a contiguous CPU tensor");
    return fabricshm::crc32c(tensor.data_ptr(), tensor.nbytes(), previous);
}

}  // namespace

PYBIND11_MODULE(_backend, module) {
    module.doc() = "c10d backend `fabricshm`";
    module.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"),
               py::arg("timeout"), py::call_guard<py::gil_scoped_release>());
    module.def("set_allocator", [](const std::string& mode, std::uint64_t threshold) {
        set_allocator_mode(mode_of(mode));
        set_allocator_threshold(threshold);
        install_arena_allocator();
    });
    py::class_<ArenaScope, std::shared_ptr<ArenaScope>>(module, "ArenaScope").def(py::init<>());
    module.def("arena_name", &JobArena::current_name);
    module.def("in_arena", [](const at::Tensor& tensor) {
        return tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
               JobArena::contains(tensor.data_ptr());
    });
    module.def(
        "end_callbacks", [] { Executor::end_callbacks(std::chrono::seconds(2)); },
        py::call_guard<py::gil_scoped_release>());
    module.def("crc32c", &checksum, py::arg("tensor"), py::arg("previous") = 0);
    bind_training(module);
    module.attr("torch_version") =
        std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
}

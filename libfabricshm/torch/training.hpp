// What the Python side of training needs of a process group: its steps, and its directives.

#pragma once

#include <torch/csrc/utils/pybind.h>

namespace fabricshm::torch_backend {

/// Adds is_ours(), abort(), shutdown(), step() and directives() to the extension, which take a
/// process group. The last two work on memory shared with fabricd: they never wait, nor let go of
/// the interpreter's lock.
void bind_training(pybind11::module_& module);

}  // namespace fabricshm::torch_backend
